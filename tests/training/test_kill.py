"""A training process killed without warning goes on as if nothing had happened."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from sample_stores import counting_documents, write_store
from lmlab.models.config import Grug
from lmlab.training.loop import fit
from lmlab.training.recipe import Mix, MuonH, Run

folder = Path(sys.argv[1])
stores = folder / "stores"
if not stores.exists():
    write_store(stores / "holdout", counting_documents(1, 12))
    write_store(stores / "train", counting_documents(0, 80))
from lmlab.artifacts import Artifact
train, holdout = (Artifact.at(str(stores / name), name=name) for name in ("train", "holdout"))
model = Grug.sized(32, vocab=32, layers=1, experts=4)
fit(
    Run(
        model=model, data=Mix({{train: 1.0}}), optimizer=MuonH(lr=0.05, adam_lr=0.01),
        batch=4, seq=32, steps=50, validation=holdout, validation_every=20,
        validation_tokens=64, checkpoint_every_steps=10,
    ),
    folder / sys.argv[2],
)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A function that starts the program; what it started is gone when the test is."""
    started: list[subprocess.Popen[bytes]] = []
    program = PROGRAM.format(tests=str(Path(__file__).parent))

    def begin(name: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def rows(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    wall_clock = ("elapsed_s", "throughput/tokens_per_s")
    return [{k: v for k, v in json.loads(line).items() if k not in wall_clock} for line in lines]


def wait_for_rows(process: subprocess.Popen[bytes], curve: Path, count: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert process.poll() is None, "the program ended before it was killed"
        if curve.exists() and len(curve.read_text().splitlines()) >= count:
            return
        time.sleep(0.005)
    raise AssertionError(f"{count} rows were not reached")


@pytest.mark.slow
def test_kill_9_at_several_steps_leaves_the_losses_as_they_were(
    start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert start("whole").wait(110) == 0
    for count in (23, 31, 44):
        process = start("killed")
        wait_for_rows(process, tmp_path / "killed" / "metrics.jsonl", count)
        process.kill()
        process.wait()
        assert not (tmp_path / "killed" / "summary.json").exists()
    assert start("killed").wait(110) == 0
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
