"""What a step's process runs: `python -m lmlab.artifacts.child FD`, a call on stdin, JSON lines on FD.

After the call, stdin brings a byte a second. A guard beside the step listens: when the runner is killed, or
frozen for longer than its claim lives, the step ends with all it started.
stdout and stderr are the attempt's log already. The experiment's file is imported under its one module name,
never as `__main__`, so that the classes in the arguments are the same on both sides.
"""

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import select
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import IO, Any

import msgspec

from lmlab.artifacts import failures
from lmlab.artifacts.body import run_body
from lmlab.artifacts.calls import Attempt, Out
from lmlab.core import process
from lmlab.core.shapecheck import install_if_asked
from lmlab.storage import Path

ENDED = b"!"
"""Said by the runner when the step's group is gone."""


@dataclass(frozen=True)
class Start:
    """Sent first: what makes the second pickle readable."""

    owner_pid: int
    search_path: tuple[str, ...]
    silence_s: float
    """Without a sign of the runner for so long, its claim may be somebody else's: the step ends itself."""
    task_bytes: int
    """Length of the second pickle: what follows it is for the guard, which reads from the same pipe."""


@dataclass(frozen=True)
class Task:
    """Sent second: the call."""

    module: str
    function: str
    path: Path
    name: str
    version: str
    attempt: int
    arguments: dict[str, Any]
    rank: int = 0
    ranks: int = 1


def main() -> int:
    """Run one task; 0 if it produced a result."""
    events = int(sys.argv[1])
    calls = _take_stdin()
    start: Start = pickle.load(calls)  # noqa: S301 - from our own runner
    called = calls.read(start.task_bytes)
    _guard(calls, events, start.silence_s)
    _prepare(start)
    process.die_with_owner(start.owner_pid)

    def send(message: dict[str, Any]) -> None:
        os.write(events, msgspec.json.encode(message) + b"\n")

    def report(text: str, done: float | None, total: float | None) -> None:
        send({"status": (text, done, total)})

    try:
        task: Task = pickle.loads(called)  # noqa: S301 - from our own runner
        step = getattr(import_module(task.module), task.function)
        attempt = Attempt(task.attempt, report, rank=task.rank, ranks=task.ranks)
        out = Out(task.path, task.name, task.version, attempt)
        send({"produced": run_body(step, out, task.arguments)})
    except KeyboardInterrupt:
        send({"failure": failures.stopped("stopped on request")})
    except BaseException as error:  # noqa: BLE001 - the process boundary: every end is reported
        failure = failures.from_exception(error)
        # The log lies on the disk that may be full, and the reason must still arrive.
        with contextlib.suppress(OSError):
            sys.stderr.write(failure.traceback)
        send({"failure": failure})
    else:
        return 0
    return 1


def _take_stdin() -> IO[bytes]:
    """What the runner sends; the step itself, and what it starts, find an empty stdin."""
    calls = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, not a path of ours
        os.dup2(nothing.fileno(), 0)
    return calls


def _guard(calls: IO[bytes], events: int, silence_s: float) -> None:
    """Start the guard: a process outside the step's group, which neither a long C call nor a death stops.

    It is forked while there is one thread, and twice, so that a step that waits for all children has none.
    """
    if os.fork():
        os.wait()
        return
    group = os.getpgrp()
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (events, 1, 2):
        os.close(number)
    said = b"."
    while said and ENDED not in said and select.select([calls], [], [], silence_s)[0]:
        said = os.read(calls.fileno(), 1 << 16)
    if ENDED not in said:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)


def _prepare(start: Start) -> None:
    sys.path[:] = start.search_path
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    # A forked process would inherit the locks of threads that do not exist in it (obstore hangs there).
    multiprocessing.set_start_method("spawn")
    install_if_asked()


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
