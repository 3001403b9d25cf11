"""What a person sees while steps run: a live view on a terminal, calm lines on a pipe.

On a pipe: one line per change, progress at most once per 30 s and step, no escape bytes.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from lmlab.artifacts.building import Event
from lmlab.artifacts.plan import Plan
from lmlab.core.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

_QUIET_S = 30.0
_ENDS = ("built", "served", "failed", "skipped", "stopped")
Listen = Callable[[Event], None]


@dataclass
class Progress:
    """One running step, and when it will end at the pace of its current stage."""

    started: float
    text: str = "starting"
    done: float | None = None
    total: float | None = None
    stage_started: float = 0.0
    stage_from: float = 0.0
    printed: float = field(default=float("-inf"))

    def update(self, event: Event, now: float) -> None:
        """Take in a status. A stage without numbers (compiling) leaves no trace in the next one's pace."""
        if event.done is None or self.done is None or event.text != self.text or event.done < self.done:
            self.stage_started, self.stage_from = now, event.done or 0.0
        self.text, self.done, self.total = event.text, event.done, event.total

    def left_s(self, now: float) -> float | None:
        """Seconds to the end of this stage; None while there is nothing to go by."""
        if self.done is None or not self.total or self.done <= self.stage_from or now <= self.stage_started:
            return None
        return (self.total - self.done) * (now - self.stage_started) / (self.done - self.stage_from)

    def line(self, now: float) -> str:
        """`dedup 12/40, 30%, 1m20s left`."""
        parts = [self.text]
        if self.done is not None and self.total:
            parts[0] += f" {format_count(self.done)}/{format_count(self.total)}"
            parts.append(f"{min(100, 100 * self.done / self.total):.0f}%")
        left = self.left_s(now)
        return ", ".join([*parts, *([f"{format_seconds(left)} left"] if left else [])])


@contextlib.contextmanager
def watch(plan: Plan, screen: TextIO) -> Generator[Listen]:
    """Show events on a screen or pipe until the block ends."""
    if not plan.to_build:
        yield lambda _event: None
    elif screen.isatty():
        with _live(plan, screen) as listen:
            yield listen
    else:
        yield _Lines(plan, lambda line: print(line, file=screen, flush=True)).listen


class _Lines:
    """One line per change."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.running: dict[str, Progress] = {}
        self.ended = 0
        self.total = len(plan.to_build)
        self.began = time.monotonic()
        self._say = say
        self._lock = threading.Lock()

    def listen(self, event: Event) -> None:
        with self._lock:
            now = time.monotonic()
            line = self._line(event, now)
            if line is not None:
                self._say(f"{format_seconds(now - self.began):>7}  {event.address}  {line}")

    def _line(self, event: Event, now: float) -> str | None:
        if event.kind == "waiting":
            return f"waits for {event.text}, which is building it"
        if event.kind == "started":
            self.running[event.address] = Progress(now)
            return "started" if event.text == "1" else f"started, attempt {event.text}"
        if event.kind == "status":
            return self._status(event, now)
        self.ended += 1
        progress = self.running.pop(event.address, None)
        took = f" in {format_seconds(now - progress.started)}" if progress else ""
        if event.kind == "built":
            return f"built{took} ({self.ended}/{self.total})"
        reason = event.text.splitlines()[0] if event.text else ""
        return f"{event.kind}{took}: {reason}" if reason else f"{event.kind}{took}"

    def _status(self, event: Event, now: float) -> str | None:
        progress = self.running.get(event.address)
        if progress is None:
            return None
        changed = progress.text != event.text
        progress.update(event, now)
        if now - progress.printed < _QUIET_S and not (changed and progress.printed < progress.started):
            return None
        progress.printed = now
        return progress.line(now)


@contextlib.contextmanager
def _live(plan: Plan, screen: TextIO) -> Generator[Listen]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=screen, highlight=False)
    lines = _Lines(plan, lambda line: None)  # noqa: ARG005 - the state is drawn, not its changes

    def draw() -> "RenderableType":
        now = time.monotonic()
        rows = [Text(f"{lines.ended}/{lines.total} built, {format_seconds(now - lines.began)}", style="dim")]
        for address, progress in list(lines.running.items()):
            rows.append(Text(f"{address}  {format_seconds(now - progress.started)}", style="bold"))
            rows.append(Text(f"    {progress.line(now)}", style="cyan"))
        return Group(*rows)

    def listen(event: Event) -> None:
        progress = lines.running.get(event.address)
        lines.listen(event)
        if event.kind in _ENDS and event.kind != "skipped":
            took = format_seconds(time.monotonic() - progress.started) if progress else ""
            style = {"built": "green", "failed": "red"}.get(event.kind, "yellow")
            console.print(Text(f"{event.kind:<8}{event.address}  {took}", style=style))

    with Live(get_renderable=draw, console=console, refresh_per_second=4, transient=True):
        yield listen
