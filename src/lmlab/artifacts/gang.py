"""Steps of several tasks: one claim, N processes that run one body as one program, rank 0's result.

`Here` starts the processes on this machine. Ranks that srun or mpirun started are led by `ranks.Leader`.
"""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Protocol

from lmlab.artifacts import failures, records
from lmlab.artifacts.body import Produced
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.launch import Control, Job, run_in_process

_TICK_S = 0.05
_DRAIN_S = 5.0
Inbox = queue.SimpleQueue[tuple[int, Produced | Failure]]
"""How ranks end, as they do."""


class Gang(Protocol):
    """Who runs a step of several tasks."""

    def run(self, job: Job, tasks: int, control: Control) -> Produced | Failure:
        """Run the body on every rank; rank 0's result, or why the first rank failed."""
        ...


class Here:
    """All ranks are processes of this machine, started for the step."""

    def run(self, job: Job, tasks: int, control: Control) -> Produced | Failure:
        """Run the body on every rank; rank 0's result, or why the first rank failed."""
        address, abort, inbox = free_address("127.0.0.1"), threading.Event(), Inbox()
        own = Control(control.stopping, abort, control.stop_grace_s)
        job = replace(job, cpu=max(1, job.cpu // tasks))

        def one(rank: int) -> None:
            mine = of_rank(job, rank, tasks, address)
            if rank == 0:
                inbox.put((rank, run_rank(mine, own)))
                return
            with Lines(lambda line: append(job, rank, line)) as lines:
                end = run_rank(replace(mine, spool=lines, status=unheard), own)
            inbox.put((rank, end))

        with ThreadPoolExecutor(tasks, thread_name_prefix="rank") as pool:
            for rank in range(tasks):
                pool.submit(one, rank)
            return gather(inbox, of_rank(job, 0, tasks, address), control, abort)


class Lines:
    """What a rank prints, line by line: its end is kept, each line passed on."""

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        read_fd, write_fd = os.pipe()
        self.file: IO[bytes] = os.fdopen(write_fd, "wb")
        self._kept, self._pass_on = b"", pass_on
        self._thread = threading.Thread(target=self._pump, args=(read_fd,), daemon=True)
        self._thread.start()

    def end(self, size: int) -> bytes:
        """The last bytes written."""
        return self._kept[-size:]

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.file.close()
        # A daemon that the step left behind may hold the pipe open for ever.
        self._thread.join(_DRAIN_S)

    def _pump(self, read_fd: int) -> None:
        with os.fdopen(read_fd, "rb") as lines:
            for line in lines:
                self._kept = (self._kept + line)[-4_000:]
                self._pass_on(line)


def of_rank(job: Job, rank: int, ranks: int, address: str) -> Job:
    """The part of one rank: `address` is free, for the ranks' own program to meet at."""
    place = {"LMLAB_TASK_INDEX": str(rank), "LMLAB_TASK_COUNT": str(ranks), "LMLAB_COORDINATOR": address}
    return replace(job, task=replace(job.task, rank=rank, ranks=ranks), environment=place)


def run_rank(job: Job, control: Control) -> Produced | Failure:
    """Run the body in a process of its own; what goes wrong around it is a failure of the rank too."""
    try:
        return run_in_process(job, control)
    except Exception as error:  # noqa: BLE001 - the rank's boundary: the others wait for its end
        return failures.from_exception(error)


def gather(
    inbox: Inbox, job: Job, control: Control, abort: threading.Event, tell: Callable[[], None] = lambda: None
) -> Produced | Failure:
    """Wait for all ranks; a failure ends the others. Rank 0's result with the files of all, or why not."""
    ended: dict[int, Produced | Failure] = {}
    failed: list[tuple[int, Failure]] = []
    while len(ended) < job.task.ranks:
        with contextlib.suppress(queue.Empty):
            rank, end = inbox.get(timeout=_TICK_S)
            if isinstance(end, Failure) and rank not in ended:
                failed.append((rank, end))
            ended.setdefault(rank, end)
        # On Ctrl-C every rank may save what it has.
        asked = control.stopping.is_set()
        if control.killing.is_set() or any(not asked or end.kind != "stopped" for _, end in failed):
            abort.set()
        tell()
    if failed:
        rank, first = min(failed, key=lambda one: one[1].kind == "stopped")
        return replace(first, cause=f"rank {rank}: {first.cause}" if rank else first.cause)
    result = ended[0]
    assert isinstance(result, Produced)
    return replace(result, files=records.seal(job.task.path))


def append(job: Job, rank: int, line: bytes) -> None:
    """Write a line of another rank into the step's log."""
    # After the round, or on a full disk, it is only a line for people: the rank must not end or block for it.
    with contextlib.suppress(OSError, ValueError):
        os.write(job.spool.file.fileno(), f"[rank {rank}] ".encode() + line)


def unheard(_text: str, _done: float | None, _total: float | None) -> None:
    """Only rank 0 says how far the step is."""


def free_address(host: str) -> str:
    """A `host:port` of this machine at which nobody listens."""
    with socket.create_server((host, 0)) as server:
        return f"{host}:{server.getsockname()[1]}"
