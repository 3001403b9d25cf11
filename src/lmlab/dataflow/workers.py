"""A pool of worker processes that runs the same function over many tasks and survives both kinds of failure.

A task that raises gets `task_failures` tries; a worker that dies is replaced, and the task it held gets
`worker_deaths` tries. The two are counted apart: a poison record must not look like a bad machine.
Results come back in the order of the tasks, whoever finished first.
"""

import os
import pickle
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from subprocess import Popen
from types import TracebackType
from typing import Any, TypeVar

from lmlab.core import environ
from lmlab.core.errors import ConfigError
from lmlab.core.process import kill_group, start
from lmlab.dataflow.failures import TaskFailed, WorkersLost
from lmlab.dataflow.worker import Reply, attempt

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
_MAIN = "from lmlab.dataflow.worker import main; main()"


@dataclass
class _Worker:
    process: Popen[bytes]
    connection: Connection
    task: int | None = None


class Workers:
    """`count` processes with one numeric thread each; 1 runs the tasks in this process, without isolation.

    Functions are sent by name and must stand at the top level of a module that a fresh process can import.

    >>> with Workers(1) as workers:
    ...     workers.run(abs, [-2, 3], name="absolute values")
    [2, 3]
    """

    def __init__(self, count: int, *, task_failures: int = 3, worker_deaths: int = 20) -> None:
        if count < 1:
            raise ConfigError(f"workers={count}, so nothing would run. Give at least 1.")
        self.count = count
        self.task_failures = task_failures
        self.worker_deaths = worker_deaths
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        """CPU seconds by the name of the run, of all workers; the start of each process included."""
        self.deaths = 0
        """Workers that died and were replaced."""
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in (*self._idle, *self._busy):
            _stop(worker)
        self._idle, self._busy = [], []

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        name: str,
        progress: Progress | None = None,
    ) -> list[Result]:
        """`[function(task) for task in tasks]`, spread over the workers.

        Raises the task's own LmlabError at once, `TaskFailed` after `task_failures` other errors of one
        task, and `WorkersLost` after `worker_deaths` deaths under one task; both name the task.
        """
        run = _Run(name, len(tasks), self, progress)
        if self.count == 1:
            for index, task in enumerate(tasks):
                while not run.take(index, attempt(function, task, time.process_time())):
                    pass
            return run.results
        messages = [pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL) for task in tasks]
        waiting = deque(range(len(tasks)))
        try:
            while run.done < len(tasks):
                self._hand_out(waiting, messages)
                for index in self._collect(run):
                    waiting.appendleft(index)
        finally:
            # After a failure the others' work is of no use, and a worker in the middle of it can't take more.
            for worker in self._busy:
                _stop(worker)
            self._busy = []
        return run.results

    def _hand_out(self, waiting: deque[int], messages: list[bytes]) -> None:
        while waiting and len(self._busy) < self.count:
            worker = self._idle.pop() if self._idle else _spawn()
            worker.task = waiting.popleft()
            self._busy.append(worker)
            try:
                worker.connection.send_bytes(messages[worker.task])
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died while idle: its closed socket is found, and counted, by `_collect`

    def _collect(self, run: "_Run") -> list[int]:
        """Wait for at least one worker; the tasks that must be tried again."""
        again = []
        ready = wait([worker.connection for worker in self._busy])
        for worker in [worker for worker in self._busy if worker.connection in ready]:
            self._busy.remove(worker)
            index = worker.task
            assert index is not None
            try:
                reply = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                _stop(worker)
                self.deaths += 1
                run.bury(index, worker.process.returncode)
                again.append(index)
                continue
            self._idle.append(worker)
            if not run.take(index, reply):
                again.append(index)
        return again


class _Run:
    """The book of one `run`: results by task, failures and deaths counted apart."""

    def __init__(self, name: str, total: int, workers: Workers, progress: Progress | None) -> None:
        self.name, self.workers, self.progress = name, workers, progress
        self.results: list[Any] = [None] * total
        self.done = 0
        self._failures: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()

    def take(self, index: int, reply: Reply) -> bool:
        """Note a reply; False means that the task has another try."""
        self.workers.cpu_s[self.name] += reply.cpu_s
        if reply.final is not None:
            raise reply.final
        if reply.failure is not None:
            self._failures[index] += 1
            if self._failures[index] >= self.workers.task_failures:
                raise TaskFailed(
                    f"{self._label(index)} failed {self._failures[index]} times, the last time at "
                    f"{reply.failure}. Mend the record or the function; the log has the traceback."
                )
            return False
        self.results[index] = reply.result
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, len(self.results))
        return True

    def bury(self, index: int, code: int | None) -> None:
        """Note that the worker of a task died."""
        self._deaths[index] += 1
        if self._deaths[index] >= self.workers.worker_deaths:
            raise WorkersLost(
                f"{self._label(index)} lost its worker process {self._deaths[index]} times, the last time "
                f"with {_ending(code)}. Give it more memory, or run with workers=1 to see where it crashes."
            )

    def _label(self, index: int) -> str:
        return f"{self.name}: task {index + 1} of {len(self.results)}"


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (as when memory runs out)" if name == "SIGKILL" else name


def _spawn() -> _Worker:
    ours, theirs = Pipe(duplex=True)
    # Not -m: the module must have its own name for replies to be unpickled here.
    argv = [sys.executable, "-c", _MAIN, str(os.getpid()), str(theirs.fileno())]
    process = start(argv, env=environ.child_environment(), pass_fds=(theirs.fileno(),))
    theirs.close()
    return _Worker(process, ours)


def _stop(worker: _Worker) -> None:
    worker.connection.close()
    kill_group(worker.process, grace_s=0)
