"""kill -9 of everything, three times, then the same command: nothing is lost and the result is the same."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart import EXPERIMENT, SMALL, command, environment, folder, record, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run_until(root: Path, reached: Callable[[], bool]) -> None:
    """Start the quick start, and kill -9 the whole process tree as soon as `reached()`."""
    runner = subprocess.Popen(
        command("run", str(EXPERIMENT), "--", *SMALL),
        env=environment(root),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not reached():
        assert runner.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()


def losses(root: Path) -> list[float]:
    lines = (folder(root, "runs/grug") / "metrics.jsonl").read_text().splitlines()
    return [row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row]


def test_killed_in_curation_training_and_evaluation_it_ends_with_the_same_bytes(tmp_path, small_quickstart):
    root = tmp_path / "root"
    claimed = {name: folder(root, name) / ".claims" for name in ("corpus/quickstart", "evals/quickstart")}
    checkpoints = folder(root, "runs/grug") / "checkpoints"
    run_until(root, claimed["corpus/quickstart"].exists)
    run_until(root, lambda: len(list(checkpoints.glob("*/done.json"))) >= 2)
    run_until(root, claimed["evals/quickstart"].exists)
    last = run_small(root).stdout
    assert "raw/quickstart@2026.11.30  started" not in last
    assert "runs/grug@2026.11.30  started" not in last
    assert record(root, "runs/grug")["attempt"] >= 2
    for name in ("corpus/quickstart", "tokens/quickstart", "models/quickstart"):
        ours, theirs = (record(place, name)["files"] for place in (root, small_quickstart.root))
        assert ours == theirs, name
    assert losses(root) == losses(small_quickstart.root)
    assert (
        record(root, "evals/quickstart")["result"]
        == record(small_quickstart.root, "evals/quickstart")["result"]
    )
