"""Steps of several tasks: one claim, N processes that run one body as one program, rank 0's result.

`Here` starts the processes on this machine. Ranks that srun or mpirun started are led by `ranks.Leader`.
"""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Protocol

from lmlab.artifacts import records
from lmlab.artifacts.body import Produced
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.launch import Control, Job, Watchdog, run_in_process
from lmlab.storage import Path

TICK_S = 0.05
Ended = dict[int, Produced | Failure]
"""How the ranks ended, in that order."""


class Gang(Protocol):
    """Who runs a step of several tasks."""

    def run(self, job: Job, tasks: int, control: Control, watchdog: Watchdog) -> Produced | Failure:
        """Run the body on every rank; rank 0's result, or why the first rank failed."""
        ...


class Here:
    """All ranks are processes of this machine, started for the step."""

    def run(self, job: Job, tasks: int, control: Control, watchdog: Watchdog) -> Produced | Failure:
        """Run the body on every rank; rank 0's result, or why the first rank failed."""
        address, abort = free_address("127.0.0.1"), threading.Event()
        own = Control(control.stopping, abort, control.stop_grace_s)
        job = replace(job, cpu=max(1, job.cpu // tasks))

        def one(rank: int) -> tuple[int, Produced | Failure]:
            mine = of_rank(job, rank, tasks, address)
            if rank == 0:
                return rank, run_in_process(mine, own, watchdog)
            with Lines(lambda line: append(job, rank, line)) as lines:
                return rank, run_in_process(replace(mine, spool=lines, status=unheard), own, watchdog)

        ended: Ended = {}
        with ThreadPoolExecutor(tasks, thread_name_prefix="rank") as pool:
            results: queue.SimpleQueue[Future[tuple[int, Produced | Failure]]] = queue.SimpleQueue()
            for rank in range(tasks):
                pool.submit(one, rank).add_done_callback(results.put)
            while len(ended) < tasks:
                with contextlib.suppress(queue.Empty):
                    rank, end = results.get(timeout=TICK_S).result()
                    ended[rank] = end
                if is_broken(ended, control):
                    abort.set()
        return outcome(ended, job.task.path)


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
        self._thread.join()

    def _pump(self, read_fd: int) -> None:
        with os.fdopen(read_fd, "rb") as lines:
            for line in lines:
                self._kept = (self._kept + line)[-4_000:]
                self._pass_on(line)


def of_rank(job: Job, rank: int, ranks: int, address: str) -> Job:
    """The part of one rank: `address` is free, for the ranks' own program to meet at."""
    place = {"LMLAB_TASK_INDEX": str(rank), "LMLAB_TASK_COUNT": str(ranks), "LMLAB_COORDINATOR": address}
    return replace(job, task=replace(job.task, rank=rank, ranks=ranks), environment=place)


def is_broken(ended: Ended, control: Control) -> bool:
    """Whether the others must end: a rank failed, or somebody is in a hurry. On Ctrl-C all may save first."""
    asked = control.stopping.is_set()
    failed = [
        end for end in ended.values() if isinstance(end, Failure) and not (asked and end.kind == "stopped")
    ]
    return control.killing.is_set() or bool(failed)


def outcome(ended: Mapping[int, Produced | Failure], path: Path) -> Produced | Failure:
    """The first failure in time, else rank 0's result with the files of all ranks."""
    failed = [(rank, end) for rank, end in ended.items() if isinstance(end, Failure)]
    if failed:
        rank, first = min(failed, key=lambda one: one[1].kind == "stopped")
        return replace(first, cause=f"rank {rank}: {first.cause}" if rank else first.cause)
    mine = ended[0]
    assert isinstance(mine, Produced)
    return replace(mine, files=records.seal(path))


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
