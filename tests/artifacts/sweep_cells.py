"""A sweep of twelve cells that several runners share, as a file for `lmlab run … --race`."""

import os
import time
from dataclasses import dataclass

from sample_steps import Number, note

from lmlab.artifacts import Artifact, Out, RunOnly, step, sweep

DIARY = os.environ.get("DIARY", "")


@dataclass(frozen=True)
class Best(Artifact):
    cell: str
    value: int


@step(inline=True)
def cell(out: Out, lr: int, width: int, diary: RunOnly[str] = "") -> Number:
    note(diary, f"{os.environ.get('WORKER', '0')} {out.name}")
    if out.name == os.environ.get("HANG_IN"):
        note(diary, f"hangs {os.getpid()}")
        time.sleep(60)
    if out.name == os.environ.get("FAIL_IN"):
        raise ValueError("bad luck")
    time.sleep(0.05)
    return Number(lr * width)


@step(inline=True)
def best(out: Out, runs: list[Number], diary: RunOnly[str] = "") -> Best:
    """Choosing is ordinary code over loaded results."""
    note(diary, f"{os.environ.get('WORKER', '0')} {out.name}")
    won = max(runs, key=lambda run: run.value)
    return Best(won.address, won.value)


def build() -> Artifact:
    runs = sweep(
        lambda lr, width: cell(f"cells/{lr}-{width}", lr, width, DIARY), lr=(1, 2, 3), width=(10, 20, 30, 40)
    )
    return best("cells/best", runs, DIARY)
