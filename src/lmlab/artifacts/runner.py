"""Executing a plan: ready steps first, each in a pool thread that carries it from claim to record.

One thread decides. A failed step fails what needs it; the rest goes on. Steps end when their claim is lost,
on Ctrl-C (once: save and stop, twice: now), and when the runner dies.
"""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace

from lmlab.artifacts import claims, failures, launch, locality, output
from lmlab.artifacts.building import Builder, Ending, Event
from lmlab.artifacts.claims import Keeper, Timing
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.gang import Gang, Here
from lmlab.artifacts.plan import Plan
from lmlab.artifacts.records import Record
from lmlab.core import environ
from lmlab.core.errors import ConfigError, StepFailed
from lmlab.storage import Path, probe


@dataclass(frozen=True)
class Options:
    """How to run, never what."""

    max_concurrent: int = 8
    """Attempts at once, at least 1."""
    cpu: int | None = None
    """Cores to share among steps that run in processes; None takes what this process may use."""
    timing: Timing = field(default_factory=Timing)
    """Heartbeats and staleness of claims."""
    stop_grace_s: float = 60.0
    """How long a step may take to write its checkpoint after Ctrl-C."""
    race: bool = False
    """One of several runners of the same plan: build what nobody holds, and stop at the first own failure."""
    retry_failed: bool = True
    """Whether what failed in an earlier run is tried again; if not, the run is refused."""
    allow_cross_region: bool = False
    """Whether to run although the root or what steps read lies in another region than this machine."""
    gang: Gang = field(default_factory=Here)
    """Who runs steps of several tasks."""

    def __post_init__(self) -> None:
        if self.max_concurrent < 1:
            raise ConfigError(
                f"max_concurrent={self.max_concurrent}: nothing could ever start. Give 1 or more."
            )


@dataclass
class Report:
    """How a run ended."""

    plan: Plan
    endings: dict[str, Ending] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> dict[str, Ending]:
        """Steps that failed themselves, first the first."""
        return {address: e for address, e in self.endings.items() if e.kind == "failed"}

    @property
    def stopped(self) -> bool:
        """Whether something was left undone on request."""
        return any(ending.kind == "stopped" for ending in self.endings.values())

    @property
    def exit_code(self) -> int:
        """0 if all is built, 130 if stopped, else the first failure's."""
        for ending in self.failed.values():
            return ending.failure.exit_code if ending.failure else 1
        return 130 if self.stopped else 0

    def record(self, address: str) -> Record | None:
        """The record of an artifact as of the end of the run."""
        ending = self.endings.get(address)
        return ending.record if ending else self.plan.items[address].record


def execute(
    plan: Plan, root: Path, options: Options | None = None, listen: Callable[[Event], None] | None = None
) -> Report:
    """Build what the plan says. Failures of steps are in the report; only a broken run raises."""
    began = time.monotonic()
    run = _Run(plan, root, options or Options(), listen or _ignore)
    if plan.to_build:
        _refuse_ranks()
        if not run.options.retry_failed:
            _refuse_failed(plan, root)
        locality.check(plan, root, allowed=run.options.allow_cross_region)
        probe(root)
        with stop_on_signal(run.stop), output.routed():
            run.schedule()
    run.report.seconds = time.monotonic() - began
    return run.report


def _ignore(_event: Event) -> None:
    """Nobody watches."""


def _refuse_ranks() -> None:
    found = environ.rank()
    if found is not None:
        raise ConfigError(
            f"{found[0]}={found[1]}: this process is one of many of a larger program, and a runner on each "
            "would wait for the others' claims. Start the runner once, give --gang to every rank so that the "
            "first leads, or call step.body(…) on every rank."
        )


def _refuse_failed(plan: Plan, root: Path) -> None:
    for item in plan.to_build:
        folder = item.node.folder(root)
        number = claims.newest(folder) if item.record is None else 0
        beat = claims.read_beat(folder, number) if number else None
        if beat is not None and beat.state == "failed":
            cause = beat.error.partition("\n")[0]
            raise StepFailed(
                f"{item.node.address} failed before ({cause}), and --no-retry-failed says not to try again. "
                "Correct its cause and run without that flag."
            )


class _Run:
    def __init__(self, plan: Plan, root: Path, options: Options, listen: Callable[[Event], None]) -> None:
        self.report, self.options = Report(plan), options
        self._plan, self._root, self._listen = plan, root, listen
        self._slots = options.max_concurrent
        self._cpu = options.cpu or environ.cpu_count()
        self._control = launch.Control(stop_grace_s=options.stop_grace_s)
        self._keeper = Keeper(options.timing)
        self._builder = Builder(
            graph=plan.graph,
            root=root,
            record_of=self.report.record,
            listen=listen,
            control=self._control,
            keeper=self._keeper,
            timing=options.timing,
            gang=options.gang,
            waits=not options.race,
        )
        self._ended: queue.SimpleQueue[tuple[str, Ending]] = queue.SimpleQueue()
        self._pending = {item.node.address: plan.waits_for(item) for item in plan.to_build}
        self._dependents: dict[str, list[str]] = {}
        for address, needs in self._pending.items():
            for needed in needs:
                self._dependents.setdefault(needed, []).append(address)
        self._ready = [address for address, needs in self._pending.items() if not needs]
        self._running: dict[str, int] = {}
        self._held: list[str] = []
        self._look_at = 0.0

    def stop(self) -> None:
        """Once: running steps save what they can. Twice: they are killed."""
        if self._control.stopping.is_set():
            self._control.killing.set()
        self._control.stopping.set()

    def schedule(self) -> None:
        """Start what is ready, settle what ends, until nothing is left."""
        try:
            with ThreadPoolExecutor(self._slots, thread_name_prefix="step") as pool:
                while self._pending or self._running:
                    if self._control.stopping.is_set() or (self.options.race and self.report.failed):
                        self._stop_pending()
                    self._look_again()
                    for address in self._take_startable():
                        pool.submit(copy_context().run, self._attempt, address, self._running[address])
                    # Signals are seen only between waits, hence the timeout.
                    with contextlib.suppress(queue.Empty):
                        self._settle(*self._ended.get(timeout=0.2))
        finally:
            self._keeper.close()

    def _look_again(self) -> None:
        """In a race: when nothing else is ready, see what became of the steps that others held."""
        if self._held and not self._ready and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + 4 * self.options.timing.poll_s
            self._ready, self._held = self._held, []

    def _take_startable(self) -> list[str]:
        chosen: list[str] = []
        free = self._cpu - sum(self._running.values())
        for address in self._ready:
            if len(self._running) >= self._slots:
                break
            item = self._plan.items[address]
            share = item.node.call.resources
            is_light = item.node.call.step.inline or item.found is not None
            cpu = 0 if is_light else min(share.cpu * share.tasks, self._cpu)
            if cpu <= free:
                free -= cpu
                chosen.append(address)
                self._running[address] = cpu
                del self._pending[address]
        if chosen:
            taken = set(chosen)
            self._ready = [address for address in self._ready if address not in taken]
        return chosen

    def _attempt(self, address: str, cpu: int) -> None:
        began = time.monotonic()
        item = self._plan.items[address]
        try:
            ending = self._builder.build(item, max(cpu, 1))
        except BaseException as error:  # noqa: BLE001 - the step boundary: its siblings go on
            ending = Ending("failed", failure=failures.from_exception(error))
        self._ended.put((address, replace(ending, seconds=time.monotonic() - began)))

    def _settle(self, address: str, ending: Ending) -> None:
        del self._running[address]
        if ending.kind == "held":
            self._pending[address] = set()
            self._held.append(address)
            return
        self._end(address, ending)
        if ending.kind == "failed":
            self._fail_dependents(address)
        if ending.kind not in ("built", "served"):
            return
        for dependent in self._dependents.get(address, ()):
            needs = self._pending.get(dependent)
            if needs is not None:
                needs.discard(address)
                if not needs:
                    self._ready.append(dependent)

    def _fail_dependents(self, failed: str) -> None:
        affected = [failed]
        while affected:
            for dependent in self._dependents.get(affected.pop(), ()):
                if self._pending.pop(dependent, None) is not None:
                    affected.append(dependent)
                    self._end(dependent, Ending("skipped", failure=Failure("skipped", f"needs {failed}")))

    def _stop_pending(self) -> None:
        for address in self._pending:
            self._end(address, Ending("stopped", failure=failures.stopped("not started")))
        self._pending.clear()
        self._ready.clear()
        self._held.clear()

    def _end(self, address: str, ending: Ending) -> None:
        self.report.endings[address] = ending
        self._listen(Event(address, ending.kind, ending.failure.cause if ending.failure else ""))


@contextlib.contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Generator[None]:
    """Ctrl-C and SIGTERM ask the run to stop; only the main thread can listen for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda _number, _frame: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
