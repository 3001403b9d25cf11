"""Steps whose body is one program of several processes, and the experiment that srun-like launchers start."""

import os
import socket
import time
from pathlib import Path

from sample_steps import Number, note

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.core.resources import Resources


def _meet(out: Out) -> None:
    """Rank 0 hears every other rank at the address that all were given."""
    host, _, port = os.environ["LMLAB_COORDINATOR"].rpartition(":")
    if out.rank == 0:
        with socket.create_server((host, int(port))) as server:
            for _ in range(out.ranks - 1):
                server.accept()[0].close()
        return
    for _ in range(200):
        try:
            socket.create_connection((host, int(port))).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.02)


@step
def meet(out: Out, diary: RunOnly[str] = "") -> Number:
    note(
        diary, f"{out.rank} of {out.ranks}: {os.environ['LMLAB_TASK_INDEX']} {os.environ['LMLAB_TASK_COUNT']}"
    )
    print("hello from", out.rank)  # noqa: T201 - goes to the log
    _meet(out)
    # Rank 0 is done first: its files must not be counted before the others'.
    time.sleep(0.1 * out.rank)
    (out.path / f"shard-{out.rank}").write_text(str(out.rank))
    return Number(out.ranks if out.rank == 0 else -1)


@step
def fall(out: Out, who: int, diary: RunOnly[str] = "") -> Number:
    note(diary, str(os.getpid()))
    if out.rank == who:
        while len(Path(diary).read_text().split()) < out.ranks:
            time.sleep(0.02)
        raise ValueError(f"shard {out.rank} is broken")
    time.sleep(60)
    return Number(0)


@step(inline=True)
def after_all(out: Out, of: Number) -> Number:
    return Number(of.value * 10)


def build() -> Artifact:
    diary = os.environ["DIARY"]
    first = meet("gangs/meet", diary).on(Resources(tasks=int(os.environ.get("TASKS", "3"))))
    if os.environ.get("WHO"):
        first = fall("gangs/fall", int(os.environ["WHO"]), diary).on(Resources(tasks=3))
    return after_all("gangs/after", first)
