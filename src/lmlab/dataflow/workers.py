"""The local runner: a pool of processes, each in its own group, that take one task after another."""

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from subprocess import Popen

from lmlab.core import environ
from lmlab.core.errors import ConfigError
from lmlab.core.process import kill_group, start
from lmlab.dataflow.runner import LIMITS, Call, Limits, Runner
from lmlab.dataflow.worker import BEAT_S, Death, Desk, Pulse, Reply, cpu_spent_s

# Not -m: the module must have its own name for replies to be unpickled here.
_MAIN = "from lmlab.dataflow.worker import main; main()"


@dataclass
class _Worker:
    process: Popen[bytes]
    connection: Connection
    tasks: set[int] = field(default_factory=set)
    is_closed: bool = False
    """It holds a suspect, which is tried alone."""
    silent_s: float = 0.0
    last_words: str = ""


class Workers(Runner):
    """`count` cores of this machine, one numeric thread each; 1 runs the tasks in this process.

    >>> with Workers(1) as workers:
    ...     workers.run(abs, [-2, 3], name="absolute values")
    [2, 3]
    """

    def __init__(self, count: int, limits: Limits = LIMITS) -> None:
        super().__init__(count, limits)
        if count == 1 and limits.memory_bytes is not None:
            raise ConfigError(
                "workers=1 runs the tasks in this process, which a memory limit would kill. Give workers=2."
            )
        self._workers: list[_Worker] = []
        self._replies: list[Reply] = []
        self._desk = Desk(tell=lambda _: None)
        self._looked_s = 0.0

    def _open(self, call: Call) -> None:
        if self.count > 1 and b"\x8c\x08__main__" in call.function:
            raise ConfigError(
                "The function stands in the script that is running, where another process can't find it. "
                "Move it into a module, or give workers=1."
            )
        at_once = self.count // call.resources.cpu
        if call.resources.memory_bytes is not None:
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            at_once = min(at_once, memory_bytes // call.resources.memory_bytes)
        self._call = call
        self._threads = max(1, min(call.threads, at_once))
        self._processes = max(1, at_once // self._threads)
        self._looked_s = time.monotonic()
        cpu_spent_s()  # what this process did before is no task's

    def _hand_out(self, waiting: deque[int], suspects: set[int]) -> None:
        if self.count == 1:
            if waiting:
                self._replies.append(self._desk.work(*self._call.message(waiting.popleft())))
            return
        while waiting and (worker := self._place(waiting[0] in suspects)) is not None:
            index = waiting.popleft()
            worker.is_closed = index in suspects
            worker.tasks.add(index)
            # If it died while idle, its closed socket is found, and counted, by `_collect`.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.connection.send(self._call.message(index))

    def _place(self, is_suspect: bool) -> _Worker | None:
        for worker in self._workers[: self._processes]:
            has_room = not is_suspect and not worker.is_closed and len(worker.tasks) < self._threads
            if has_room or not worker.tasks:
                return worker
        if len(self._workers) >= self._processes:
            return None
        self._workers.append(_spawn(self.limits.memory_bytes))
        return self._workers[-1]

    def _collect(self) -> Iterator[Reply | Pulse | Death]:
        if self.count == 1:
            yield self._replies.pop()
            return
        busy = [worker for worker in self._workers if worker.tasks]
        ready = wait([worker.connection for worker in busy], BEAT_S)
        # Capped: when this process was stopped itself, the time in between is nobody's silence.
        passed_s = min(time.monotonic() - self._looked_s, 2 * BEAT_S)
        self._looked_s = time.monotonic()
        for worker in busy:
            worker.silent_s = 0 if worker.connection in ready else worker.silent_s + passed_s
            if worker.connection in ready:
                yield self._listen(worker)
            elif worker.silent_s > self.limits.heartbeat_s:
                worker.last_words = f"no sign of life for {worker.silent_s:.0f} s"
                yield self._bury(worker)

    def _listen(self, worker: _Worker) -> Reply | Pulse | Death:
        try:
            message: Reply | Pulse = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._bury(worker)
        if isinstance(message, Pulse):
            worker.last_words = message.last_words
        else:
            worker.tasks.remove(message.index)
            worker.is_closed = False
        return message

    def _bury(self, worker: _Worker) -> Death:
        worker.connection.close()
        kill_group(worker.process, grace_s=0)
        self._workers.remove(worker)
        return Death(tuple(sorted(worker.tasks)), worker.last_words or _ending(worker.process.returncode))

    def _drop(self) -> None:
        for worker in [worker for worker in self._workers if worker.tasks]:
            self._bury(worker)
        self._replies = []

    def _close(self) -> None:
        while self._workers:
            self._bury(self._workers[0])


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (as when memory runs out)" if name == "SIGKILL" else name


def _spawn(memory_bytes: int | None) -> _Worker:
    ours, theirs = Pipe(duplex=True)
    argv = [sys.executable, "-c", _MAIN, str(os.getpid()), str(theirs.fileno())]
    process = start(argv, env=environ.child_environment(), pass_fds=(theirs.fileno(),))
    theirs.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # found when it is given a task
        ours.send((sys.path, memory_bytes))
    return _Worker(process, ours)
