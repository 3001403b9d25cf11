"""The far side of a runner: what a process does with the tasks it is given, and how it tells of them.

A task comes as a `Message` and becomes a `Reply`; meanwhile a thread of the process sends a `Pulse` a second.
Results and errors travel pickled inside the reply, so that one which can't be read on the other side costs
its task and not the connection.
"""

import contextlib
import ctypes
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from lmlab.core.errors import LmlabError, StepFailed
from lmlab.core.process import die_with_owner
from lmlab.dataflow.counters import Tally, collecting
from lmlab.dataflow.failures import RecordFailed, TaskFailed

BEAT_S = 1.0
_LOOK_S = 0.1
_SPENDING = threading.Lock()
_spent_s = 0.0
_GROWTH_BYTES = 32 << 20
_kept_bytes = 0
Message = tuple[int, bytes, bytes]
"""Number of the task, and pickled its function and itself."""


@dataclass(frozen=True)
class Answer:
    """What became of one try."""

    result: Any = None
    final: LmlabError | None = None
    """An error that trying again can't mend."""
    failure: str | None = None
    """A line for one that it may."""


@dataclass(frozen=True)
class Reply:
    """A try of a task has ended."""

    index: int
    answer: bytes
    """A pickled Answer."""
    tally: Tally
    cpu_s: float
    """Of this worker since its last reply; the first one holds its imports."""
    rss_bytes: int

    def opened(self) -> Answer:
        """The answer; an error of its own if this process can't read it."""
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
    """A worker died, or was killed for its silence, with the tasks that it held."""

    indices: tuple[int, ...]
    reason: str


class Desk:
    """The tasks that run in this process; as a context, with the thread that tells of them."""

    def __init__(self, tell: Callable[[Pulse], None], memory_bytes: int | None = None) -> None:
        self._tell, self._memory_bytes = tell, memory_bytes
        self._tallies: dict[int, Tally] = {}
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()

    def work(self, index: int, function: bytes, task: bytes) -> Reply:
        """Run one task, turning whatever it raises into a reply."""
        tally = self._tallies[index] = {}
        with collecting(tally):
            answer = _pack(_attempt(function, task))
        del self._tallies[index]
        _give_back()
        return Reply(index, answer, tally, cpu_spent_s(), own_memory_bytes())

    def _beat(self) -> None:
        told_s = 0.0
        while not self._closing.wait(_LOOK_S):
            used = own_memory_bytes()
            tallies = {index: dict(tally) for index, tally in list(self._tallies.items())}
            if tallies and self._memory_bytes is not None and used > self._memory_bytes:
                limit = f"{used >> 20} MiB of memory, over its limit of {self._memory_bytes >> 20} MiB"
                self._tell(Pulse(used, tallies, limit))
                os._exit(1)
            if tallies and time.monotonic() - told_s >= BEAT_S:
                self._tell(Pulse(used, tallies))
                told_s = time.monotonic()


def cpu_spent_s() -> float:
    """CPU seconds of this process since the last call."""
    global _spent_s
    with _SPENDING:
        before, _spent_s = _spent_s, time.process_time()
        return _spent_s - before


def _give_back() -> None:
    """Return to the system what a large task freed: glibc alone would keep it, 60 MB after a shuffle."""
    global _kept_bytes
    if own_memory_bytes() > _kept_bytes + _GROWTH_BYTES:
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)
        _kept_bytes = own_memory_bytes()


def own_memory_bytes() -> int:
    """Resident memory of this process without what it shares, such as mapped files; 0 where nobody tells."""
    statm = Path("/proc/self/statm")
    _, resident, shared, *_ = map(int, statm.read_text().split()) if statm.exists() else (0, 0, 0)
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


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
    die_with_owner(int(sys.argv[1]))
    speaking = threading.Lock()
    owner = Connection(int(sys.argv[2]))

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
