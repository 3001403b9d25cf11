"""The metrics file: rows survive a kill, a resume cuts what came after its checkpoint, bad rows are named."""

import json
from pathlib import Path as LocalPath

import pytest

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.telemetry import JsonLines, Tracker, read_metrics


def track(folder: LocalPath, steps: range, rows: int = 0) -> None:
    tracker: Tracker = JsonLines(Path(folder), rows=rows)
    for step in steps:
        tracker.log({"train/loss": 1 / step}, step)
    tracker.finish()


def test_rows_come_back_as_they_were_logged(tmp_path: LocalPath) -> None:
    track(tmp_path, range(1, 4))
    assert read_metrics(Path(tmp_path) / "metrics.jsonl") == [
        {"step": step, "train/loss": 1 / step} for step in (1, 2, 3)
    ]


def test_a_row_is_on_disk_before_the_next_step(tmp_path: LocalPath) -> None:
    tracker = JsonLines(Path(tmp_path))
    tracker.log({"train/loss": 2.0}, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1,"train/loss":2.0}\n'
    tracker.finish()


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: LocalPath) -> None:
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    track(tmp_path / "whole", range(1, 10))
    track(tmp_path / "resumed", range(1, 8))
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "train/lo')  # killed while it wrote
    track(tmp_path / "resumed", range(6, 10), rows=5)
    whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "resumed"))
    assert resumed == whole


def test_a_new_run_does_not_keep_the_rows_of_an_old_one(tmp_path: LocalPath) -> None:
    track(tmp_path, range(1, 8))
    track(tmp_path, range(1, 2))
    assert len(read_metrics(Path(tmp_path) / "metrics.jsonl")) == 1


def test_fewer_rows_than_the_checkpoint_knows_of_is_an_error(tmp_path: LocalPath) -> None:
    track(tmp_path, range(1, 4))
    with pytest.raises(InputError, match="has 3 rows, but the checkpoint was written after 5"):
        JsonLines(Path(tmp_path), rows=5)


def test_numbers_that_json_does_not_have_are_left_out(tmp_path: LocalPath) -> None:
    tracker = JsonLines(Path(tmp_path))
    tracker.log({"a": float("nan"), "b": float("inf"), "c": 1.0}, 1)
    tracker.finish()
    assert read_metrics(Path(tmp_path) / "metrics.jsonl") == [{"step": 1, "c": 1.0}]


def test_a_broken_row_is_named_by_its_line(tmp_path: LocalPath) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": oops}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl line 2 is not JSON"):
        read_metrics(Path(tmp_path) / "metrics.jsonl")


def test_the_summary_is_one_json_file(tmp_path: LocalPath) -> None:
    tracker = JsonLines(Path(tmp_path))
    tracker.summary({"loss": 2.5, "steps": 3})
    tracker.finish()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"loss": 2.5, "steps": 3}
