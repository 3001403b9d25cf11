"""Running one function over many tasks, on processes here or on a Ray cluster, with the same rules on both.

A task that raises gets a few tries; a worker that dies is replaced, and the task it held is tried again. The
two are counted apart: a poison record must not look like a bad machine. Results come back in the order of the
tasks, whoever finished first. Where tasks run is up to the subclasses; what is tried again is decided here.
"""

import pickle
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self, TypeVar

from lmlab.core import environ
from lmlab.core.errors import ConfigError
from lmlab.core.resources import Resources
from lmlab.core.units import format_bytes, format_seconds
from lmlab.dataflow.counters import Counters
from lmlab.dataflow.failures import TaskFailed, WorkersLost
from lmlab.dataflow.worker import Death, Message, Pulse, Reply

Given = TypeVar("Given")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Limits:
    """What a run puts up with before it fails."""

    task_failures: int = 3
    """Errors of one task."""
    worker_deaths: int = 20
    """Deaths of a worker under one task."""
    total_deaths: int = 200
    """Deaths of workers in all stages of a runner together."""
    heartbeat_s: float = 120.0
    """Without a sign of life for so long, a worker is killed; that counts as a death."""
    no_workers_s: float = 600.0
    """How long a cluster may leave all tasks waiting for a worker."""
    memory_bytes: int | None = None
    """A worker whose own memory (mapped files left out) grows past this is killed; None = no limit."""


LIMITS = Limits()


@dataclass
class Stage:
    """What the tasks of one name have done so far: a row of the status."""

    total: int = 0
    done: int = 0
    failures: int = 0
    """Tries that raised."""
    deaths: int = 0
    cpu_s: float = 0.0
    """Of the workers, their start included; what one spent before it died is not known."""
    rss_bytes: int = 0
    """The largest own memory of a worker that was seen."""


@dataclass(frozen=True)
class Call:
    """What a stage asks of its workers."""

    function: bytes
    """Pickled."""
    tasks: Sequence[Any]
    resources: Resources
    """Of one task."""
    threads: int
    """Tasks that one worker runs at once."""

    def message(self, index: int) -> Message:
        """One task as it is sent."""
        return index, self.function, pickle.dumps(self.tasks[index], pickle.HIGHEST_PROTOCOL)


def open_runner(workers: int = 2, *, on: str | None = None, limits: Limits = LIMITS) -> "Runner":
    """Workers for tasks: `on` "local", "ray" (the cluster of RAY_ADDRESS) or "ray://HOST:PORT".

    Without `on`, where `lmlab run --on` says, else local. `workers` are cores: as many one-core tasks run at
    once; on Ray the cluster's own cores count. One local worker is this very process, without isolation.

    >>> with open_runner(1, on="local") as runner:
    ...     runner.run(abs, [-2, 3], name="absolute values")
    [2, 3]
    """
    chosen = check_place(on or environ.get("LMLAB_ON") or "local")
    if chosen == "local":
        from lmlab.dataflow.workers import Workers

        return Workers(workers, limits)
    from lmlab.dataflow.ray_runner import RayRunner

    return RayRunner(chosen, workers, limits)


def check_place(on: str) -> str:
    """`on`, if tasks may run there as far as can be told without asking the cluster."""
    if not re.fullmatch(r"local|ray(://[^/:]+:\d+)?", on):
        raise ConfigError(f"--on {on} names no place for tasks. Give local, ray or ray://HOST:PORT.")
    # Ray itself would look for any cluster on this machine, which may be somebody else's.
    if on == "ray" and environ.get("RAY_ADDRESS") in (None, "auto", "local"):
        raise ConfigError(
            "--on ray needs RAY_ADDRESS to name a cluster. Start one with `ray start --head` and set "
            "RAY_ADDRESS=HOST:6379, or give --on ray://HOST:10001."
        )
    if on != "local" and find_spec("ray") is None:
        raise ConfigError(f"--on {on} needs Ray, which is not installed. Run `pip install 'lmlab[ray]'`.")
    return on


class Runner(ABC):
    """Workers that run tasks; a context manager. One `run` at a time."""

    def __init__(self, count: int, limits: Limits) -> None:
        if count < 1:
            raise ConfigError(f"workers={count}, so nothing would run. Give at least 1.")
        self.count, self.limits = count, limits
        self.stages: dict[str, Stage] = {}
        self.counters = Counters()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by stage, of all workers; the start of each process included."""
        return {name: stage.cpu_s for name, stage in self.stages.items()}

    @property
    def deaths(self) -> int:
        """Workers that died and were replaced."""
        return sum(stage.deaths for stage in self.stages.values())

    def run(
        self,
        function: Callable[[Given], Result],
        tasks: Sequence[Given],
        *,
        name: str,
        progress: Progress | None = None,
        resources: Resources | None = None,
        threads: int = 1,
    ) -> list[Result]:
        """`[function(task) for task in tasks]`, spread over the workers; `resources` are those of one task.

        Functions are sent by name and must stand at the top level of a module. With `threads` a worker runs
        several tasks at once, so that imports are paid once for all of them. Raises the task's own LmlabError
        at once, `TaskFailed` after `limits.task_failures` other errors of one task, and `WorkersLost` after
        `limits.worker_deaths` deaths under one task or `total_deaths` in all; they name the task.
        """
        book = _Book(name, len(tasks), self, progress)
        self._open(Call(_sendable(function), tasks, resources or Resources(), threads))
        try:
            while len(book.done) < len(tasks):
                self._hand_out(book.waiting, book.suspects)
                for event in self._collect():
                    book.note(event)
        finally:
            # After a failure the others' work is of no use, and a worker in the middle of it can't take more.
            self._drop()
            self.counters.forget(name)
        return book.results

    def status(self, *, detail: bool = False) -> str:
        """A Markdown table of the stages; with `detail` all their counters too."""
        lines = [
            "| stage | tasks | records | bytes | cpu | memory | failures | deaths |",
            "|---" + "|---:" * 7 + "|",
        ]
        told = []
        for name, stage in self.stages.items():
            counters = self.counters.of(name)
            cells = [name, f"{stage.done}/{stage.total}"]
            cells += [f"{counters['records_out']:,.0f}" if "records_out" in counters else ""]
            cells += [format_bytes(counters["bytes_out"]) if "bytes_out" in counters else ""]
            cells += [format_seconds(stage.cpu_s), format_bytes(stage.rss_bytes)]
            cells += [str(stage.failures or ""), str(stage.deaths or "")]
            lines.append(f"| {' | '.join(cells)} |")
            told += [f"- {name}: " + ", ".join(f"{key} {n:,.6g}" for key, n in counters.items())] * bool(
                counters
            )
        return "\n".join([*lines, "", *told] if detail else lines)

    @abstractmethod
    def _open(self, call: Call) -> None:
        """Get ready for the tasks of a stage."""

    @abstractmethod
    def _hand_out(self, waiting: deque[int], suspects: set[int]) -> None:
        """Take tasks from `waiting` while there is room for them; a suspect gets a worker for itself."""

    @abstractmethod
    def _collect(self) -> Iterable[Reply | Pulse | Death]:
        """Wait about a second at most for what workers tell."""

    @abstractmethod
    def _drop(self) -> None:
        """Let go of all tasks that were handed out and have no reply."""

    @abstractmethod
    def _close(self) -> None: ...


class _Book:
    """Of one `run`: results by task, failures and deaths counted apart."""

    def __init__(self, name: str, total: int, runner: Runner, progress: Progress | None) -> None:
        self.name, self.runner, self.progress = name, runner, progress
        self.stage = runner.stages.setdefault(name, Stage())
        self.stage.total += total
        self.results: list[Any] = [None] * total
        self.waiting, self.done = deque(range(total)), set[int]()
        self.suspects = set[int]()
        """Tasks under which a worker died: tried again alone, so that the guilty one is found."""
        self._failures, self._deaths = Counter[int](), Counter[int]()

    def note(self, event: Reply | Pulse | Death) -> None:
        if isinstance(event, Death):
            return self._bury(event)
        self.stage.rss_bytes = max(self.stage.rss_bytes, event.rss_bytes)
        if isinstance(event, Reply):
            return self._take(event)
        for index in event.tallies.keys() - self.done:  # a pulse may be overtaken by the reply
            self.runner.counters.note(self.name, index, event.tallies[index])
        return None

    def _take(self, reply: Reply) -> None:
        index, answer = reply.index, reply.opened()
        is_good = answer.final is None and answer.failure is None
        self.stage.cpu_s += reply.cpu_s
        self.runner.counters.settle(self.name, index, reply.tally if is_good else None)
        if is_good:
            self.results[index] = answer.result
            self.done.add(index)
            self.stage.done += 1
            if self.progress is not None:
                self.progress(len(self.done), len(self.results))
            return
        self.stage.failures += 1
        self._failures[index] += 1
        if answer.final is not None:
            raise answer.final
        if self._failures[index] >= self.runner.limits.task_failures:
            raise TaskFailed(
                f"{self._label(index)} failed {self._failures[index]} times, the last time at "
                f"{answer.failure}. Mend the record or the function; the log has the traceback."
            )
        self.waiting.appendleft(index)

    def _bury(self, death: Death) -> None:
        self.stage.deaths += 1
        for index in death.indices:
            self.runner.counters.settle(self.name, index, None)
            self._deaths[index] += 1
            if self._deaths[index] >= self.runner.limits.worker_deaths:
                raise WorkersLost(
                    f"{self._label(index)} lost its worker {self._deaths[index]} times "
                    f"(last: {death.reason}). Give it more memory, or run with workers=1 to see it crash."
                )
            self.suspects.add(index)
            self.waiting.appendleft(index)
        if self.runner.deaths >= self.runner.limits.total_deaths:
            raise WorkersLost(
                f"{self.name}: {self.runner.deaths} workers died in all (last: {death.reason}), whatever "
                "they did. Look at the machines and their memory."
            )

    def _label(self, index: int) -> str:
        return f"{self.name}: task {index + 1} of {len(self.results)}"


def _sendable(function: Callable[..., Any]) -> bytes:
    try:
        return pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{function} can't be sent to a worker ({error}). Define it at the top level of a module."
        ) from error
