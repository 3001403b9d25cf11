"""Running a step in a process of its own that can be killed with everything it started.

Events come over a pipe; output goes straight into the attempt's log. Stopping is polite first (SIGINT, so
that a training run can write a checkpoint), then certain (SIGKILL to the group).
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from lmlab.artifacts.body import Produced
from lmlab.artifacts.calls import Out, Step
from lmlab.artifacts.child import ENDED, Start, Task
from lmlab.artifacts.claims import Claim
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.output import Sink
from lmlab.core import environ, process, provenance
from lmlab.core.errors import ConfigError
from lmlab.storage import Path

Status = Callable[[str, float | None, float | None], None]
_TICK_S = 0.1
_ALIVE_S = 1.0
_LOST_GRACE_S = 10.0


@dataclass
class Control:
    """How a running attempt is told to end."""

    stopping: threading.Event = field(default_factory=threading.Event)
    """Ctrl-C: finish what can be kept, and stop."""
    killing: threading.Event = field(default_factory=threading.Event)
    """Ctrl-C again: stop now."""
    stop_grace_s: float = 60.0
    """How long a step may take to write its checkpoint."""


@dataclass
class Message:
    """One JSON line from a step's process."""

    status: tuple[str, float | None, float | None] | None = None
    produced: Produced | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Job:
    """One attempt to be run in a process."""

    task: Task
    cpu: int
    """Cores it may use."""
    root: Path
    spool: Sink
    claim: Claim
    """Ends the process when it is lost."""
    status: Status
    environment: dict[str, str] = field(default_factory=dict)
    """What a rank of a gang is told."""


def run_in_process(job: Job, control: Control) -> Produced | Failure:
    """Start the step's process, listen to it until it ends, and never leave any of its group behind."""
    read_fd, write_fd = os.pipe()
    child = process.start(
        [sys.executable, "-m", "lmlab.artifacts.child", str(write_fd)],
        stdin=subprocess.PIPE,
        stdout=job.spool.file,
        stderr=subprocess.STDOUT,
        env=environ.child_environment(
            LMLAB_CPUS=str(job.cpu),
            LMLAB_ROOT=str(job.root),
            PYTHONUNBUFFERED="1",
            **provenance.child_variable(),
            **job.environment,
        ),
        pass_fds=(write_fd,),
    )
    os.close(write_fd)
    try:
        called = pickle.dumps(job.task)
        start = Start(os.getpid(), tuple(sys.path), job.claim.timing.lost_s, len(called))
        _tell(child, pickle.dumps(start) + called)
        with os.fdopen(read_fd, "rb", buffering=0) as events:
            return _Listener(child, events, control, job).listen()
    finally:
        process.kill_group(child, grace_s=0)
        _tell(child, ENDED, last=True)


def _tell(child: "subprocess.Popen[bytes]", data: bytes, *, last: bool = False) -> None:
    assert child.stdin is not None
    # If nobody is there to listen, the listener will say why.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(data)
        child.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        if last:
            child.stdin.close()


class _Listener:
    def __init__(
        self, child: "subprocess.Popen[bytes]", events: IO[bytes], control: Control, job: Job
    ) -> None:
        self.child, self.events, self.control, self.job = child, events, control, job
        self._rest = b""
        self._stop_by: float | None = None
        self._told = time.monotonic()

    def listen(self) -> Produced | Failure:
        while True:
            ended = self._end_if_told()
            if ended is not None:
                return ended
            if time.monotonic() - self._told > _ALIVE_S:
                self._told = time.monotonic()
                _tell(self.child, b".")
            ready, _, _ = select.select([self.events], [], [], _TICK_S)
            chunk = os.read(self.events.fileno(), 1 << 16) if ready else b""
            if ready and not chunk:
                return self._died()
            for message in self._messages(chunk):
                if message.status is not None:
                    self.job.status(*message.status)
                end = message.produced or message.failure
                if end is not None:
                    return end
            if not ready and self.child.poll() is not None:
                return self._died()

    def _messages(self, chunk: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def _end_if_told(self) -> Failure | None:
        if self.job.claim.is_lost():
            process.kill_group(self.child, grace_s=_LOST_GRACE_S)
            return self._died()
        if self.control.killing.is_set():
            return Failure("stopped", "stopped at once", exit_code=130)
        if self.control.stopping.is_set():
            now = time.monotonic()
            if self._stop_by is None:
                self._stop_by = now + self.control.stop_grace_s
                # To the leader alone: it decides what its own helpers finish.
                self.child.send_signal(signal.SIGINT)
            elif now > self._stop_by:
                grace = f"{self.control.stop_grace_s:.0f} s"
                return Failure("stopped", f"did not stop within {grace}, so it was killed", exit_code=130)
        return None

    def _died(self) -> Failure:
        code = self.child.wait()
        if self.job.claim.is_lost():
            return Failure("lost", "Another process took over this artifact, or may, so its step was ended.")
        if self.control.stopping.is_set():
            return Failure("stopped", "stopped on request, before it could save anything", exit_code=130)
        tail = self.job.spool.end(4_000).decode(errors="replace")
        last = [line for line in tail.splitlines() if line.strip()][-2:]
        if code < 0:
            name = signal.Signals(-code).name
            hint = " It may have run out of memory." if -code == signal.SIGKILL else ""
            head = f"The step's process was killed by {name}.{hint}"
        else:
            head = f"The step's process ended with exit code {code} and no result."
        return Failure("killed", "\n".join([head, *(f"  {line[:200]}" for line in last)]), tail)


def task_for(step: Step[Any, Any], out: Out, arguments: dict[str, Any]) -> Task:
    """The pickled form of a call of `step`. Raises ConfigError if its process could not import it."""
    if step.__module__ == "__main__":
        raise ConfigError(
            f"The step {step.name} stands in a script that is running, where its own process can't find it. "
            "Start the script through lmlab.experiment(build), or move the step into a module."
        )
    return Task(step.__module__, step.name, out.path, out.name, out.version, out.attempt, arguments)
