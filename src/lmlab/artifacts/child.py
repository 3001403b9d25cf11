"""What a step's process runs: `python -m lmlab.artifacts.child FD`, a call on stdin, JSON lines on FD.

stdout and stderr are the attempt's log already. The experiment's file is imported under its one module name,
never as `__main__`, so that the classes in the arguments are the same on both sides.
"""

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Any

import msgspec

from lmlab.artifacts import failures
from lmlab.artifacts.body import run_body
from lmlab.artifacts.calls import Attempt, Out
from lmlab.core import process
from lmlab.core.shapecheck import install_if_asked
from lmlab.storage import Path


@dataclass(frozen=True)
class Start:
    """Sent first: what makes the second pickle readable."""

    owner_pid: int
    search_path: tuple[str, ...]


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


def main() -> int:
    """Run one task; 0 if it produced a result."""
    events = int(sys.argv[1])
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own runner
    process.die_with_owner(start.owner_pid)
    _prepare(start)

    def send(message: dict[str, Any]) -> None:
        os.write(events, msgspec.json.encode(message) + b"\n")

    def report(text: str, done: float | None, total: float | None) -> None:
        send({"status": (text, done, total)})

    try:
        task: Task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own runner
        step = getattr(import_module(task.module), task.function)
        out = Out(task.path, task.name, task.version, Attempt(task.attempt, report))
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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
