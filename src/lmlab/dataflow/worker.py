"""The far side of `Workers`: a process that runs one task after another until its owner says stop.

It speaks over one socket: a pickled (function, task) comes in, a `Reply` goes out. What tasks print stays in
the log that both share.
"""

import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lmlab.core.errors import LmlabError
from lmlab.core.process import die_with_owner
from lmlab.dataflow.failures import RecordFailed


@dataclass(frozen=True)
class Reply:
    """What became of one task."""

    result: Any
    """What the function returned; None if it failed."""
    final: LmlabError | None
    """An error that trying again can't mend."""
    failure: str | None
    """One line for an error that another try may mend."""
    cpu_s: float
    """CPU seconds of this worker since its last reply; the first one holds its imports."""


def attempt(function: Callable[[Any], Any], task: Any, cpu_from_s: float) -> Reply:
    """Run one task, turning whatever it raises into a reply."""
    result, final, failure = None, None, None
    try:
        result = function(task)
    except LmlabError as error:
        final = error
    except Exception as error:  # noqa: BLE001 - the boundary of one task: it is counted and tried again
        traceback.print_exc()
        own = str(error) if isinstance(error, RecordFailed) else f"{type(error).__name__}: {error}"
        failure = f"{own}{_place(error)}"
    return Reply(result, final, failure, time.process_time() - cpu_from_s)


def _place(error: BaseException) -> str:
    while isinstance(error, RecordFailed) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _run_pickled(payload: bytes) -> Any:
    function, task = pickle.loads(payload)  # noqa: S301 - our own owner's message, over a socket only it holds
    return function(task)


def main() -> None:
    """Serve tasks until the owner closes the socket. Arguments: its process id, the number of the socket."""
    owner_pid, descriptor = int(sys.argv[1]), int(sys.argv[2])
    die_with_owner(owner_pid)
    cpu_from_s = 0.0
    with Connection(descriptor) as owner:
        while True:
            try:
                payload = owner.recv_bytes()
            except EOFError:
                return
            reply = attempt(_run_pickled, payload, cpu_from_s)
            cpu_from_s += reply.cpu_s
            owner.send(reply)
