"""The far side of a runner: what a process does with the tasks it is given, and how it tells of them.

A task comes as (number, pickled function, pickled task) and becomes a `Reply`; meanwhile a thread of the
process sends a `Pulse` a second. Results and errors travel pickled inside the reply, so that one which can't
be read on the other side costs its task and not the connection.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lmlab.core.errors import LmlabError, StepFailed
from lmlab.core.process import die_with_owner
from lmlab.dataflow.counters import Tally, collecting
from lmlab.dataflow.failures import RecordFailed, TaskFailed

BEAT_S = 1.0
_LOOK_S = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SPENDING = threading.Lock()
_spent_s = 0.0


@dataclass(frozen=True)
class Answer:
    """What became of one try of a task."""

    result: Any = None
    """What the function returned; None if it failed."""
    final: LmlabError | None = None
    """An error that trying again can't mend."""
    failure: str | None = None
    """One line for an error that another try may mend."""


@dataclass(frozen=True)
class Reply:
    """A try of a task has ended."""

    index: int
    answer: bytes
    """A pickled Answer."""
    tally: Tally
    cpu_s: float
    """CPU seconds of this worker since its last reply; the first one holds its imports."""
    rss_bytes: int

    def opened(self) -> Answer:
        """The answer; a failure of its own if this process can't read it."""
        try:
            return pickle.loads(self.answer)  # noqa: S301 - from our own worker
        except Exception as error:  # noqa: BLE001 - classes of the task, which may do anything when they load
            return Answer(final=TaskFailed(f"The result of a task can't be read here ({_line(error)})."))


@dataclass(frozen=True)
class Pulse:
    """A worker lives."""

    rss_bytes: int
    tallies: dict[int, Tally]
    """What the tasks that it runs have counted so far."""
    last_words: str = ""
    """Why it ends itself now."""


@dataclass(frozen=True)
class Death:
    """A worker died, or was killed for its silence."""

    indices: tuple[int, ...]
    """The tasks that it held."""
    reason: str


@dataclass
class Desk:
    """The tasks that run in this process; as a context, with the thread that tells of them."""

    tell: Callable[[Pulse], None]
    memory_bytes: int | None = None
    _tallies: dict[int, Tally] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()

    def work(self, index: int, function: bytes, task: bytes) -> Reply:
        """Run one task, turning whatever it raises into a reply."""
        tally = self._tallies[index] = {}
        with collecting(tally):
            answer = _pack(_attempt(function, task))
        del self._tallies[index]
        return Reply(index, answer, tally, cpu_spent_s(), own_memory_bytes())

    def _beat(self) -> None:
        told_s = 0.0
        while not self._closing.is_set():
            now, used = time.monotonic(), own_memory_bytes()
            tallies = {index: dict(tally) for index, tally in list(self._tallies.items())}
            if tallies and self.memory_bytes is not None and used > self.memory_bytes:
                limit = f"{used >> 20} MiB of memory, over its limit of {self.memory_bytes >> 20} MiB"
                self.tell(Pulse(used, tallies, limit))
                os._exit(1)
            if tallies and now - told_s >= BEAT_S:
                self.tell(Pulse(used, tallies))
                told_s = now
            self._closing.wait(_LOOK_S)


def cpu_spent_s() -> float:
    """CPU seconds of this process since the last call."""
    global _spent_s
    with _SPENDING:
        before, _spent_s = _spent_s, time.process_time()
        return _spent_s - before


def own_memory_bytes() -> int:
    """Resident memory of this process without what it shares, such as mapped files."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except FileNotFoundError:  # not Linux
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def _attempt(function: bytes, task: bytes) -> Answer:
    try:
        return Answer(pickle.loads(function)(pickle.loads(task)))  # noqa: S301 - from our own runner
    except LmlabError as error:
        return Answer(final=error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the boundary of one task, panics of Rust and exits included
        traceback.print_exc()
        return Answer(failure=f"{_line(error)}{_place(error)}")


def _pack(answer: Answer) -> bytes:
    try:
        packed = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        if answer.final is not None:
            pickle.loads(packed)  # noqa: S301 - our own; an error that keeps no single message fails here
    except Exception as error:  # noqa: BLE001 - classes of the task, which may do anything
        if answer.final is not None:
            return pickle.dumps(Answer(final=StepFailed(_line(answer.final))))
        return pickle.dumps(Answer(failure=f"its result, which can't be sent ({_line(error)})"))
    return packed


def _line(error: BaseException) -> str:
    return str(error) if isinstance(error, RecordFailed) else f"{type(error).__name__}: {error}"


def _place(error: BaseException) -> str:
    while isinstance(error, RecordFailed) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def main() -> None:
    """Serve tasks until the owner closes the socket. Arguments: its process id, the number of the socket."""
    owner_pid, descriptor = int(sys.argv[1]), int(sys.argv[2])
    die_with_owner(owner_pid)
    speaking = threading.Lock()
    with Connection(descriptor) as owner:

        def tell(message: Pulse | Reply) -> None:
            with speaking:
                owner.send(message)

        sys.path[:], memory_bytes = owner.recv()
        with Desk(tell, memory_bytes) as desk:
            while True:
                try:
                    message = owner.recv()
                except EOFError:
                    return
                threading.Thread(target=lambda given=message: tell(desk.work(*given)), daemon=True).start()
