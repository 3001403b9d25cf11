"""Progress of one step: its line, and how long its stage still takes."""

import io
from types import SimpleNamespace

import pytest

from lmlab.artifacts.building import Event
from lmlab.cli.table import table
from lmlab.cli.view import Progress, watch


def status(text: str, done: float | None = None, total: float | None = None) -> Event:
    return Event("a@dev", "status", text, done, total)


def test_the_time_left_goes_by_the_pace_of_the_stage():
    progress = Progress(started=0.0)
    progress.update(status("training", 10, 100), now=50.0)
    assert progress.left_s(50.0) is None
    progress.update(status("training", 20, 100), now=60.0)
    assert progress.left_s(60.0) == pytest.approx(80.0)
    assert progress.line(60.0) == "training 20/100, 20%, 1m20s left"


def test_compiling_leaves_no_trace_in_the_time_left():
    progress = Progress(started=0.0)
    progress.update(status("compiling"), now=0.0)
    assert (progress.line(30.0), progress.left_s(30.0)) == ("compiling", None)
    progress.update(status("training", 0, 100), now=60.0)
    progress.update(status("training", 50, 100), now=70.0)
    assert progress.left_s(70.0) == pytest.approx(10.0)


def test_a_new_stage_starts_its_own_pace():
    progress = Progress(started=0.0)
    progress.update(status("reading", 1, 2), now=1.0)
    progress.update(status("reading", 2, 2), now=100.0)
    progress.update(status("writing", 1, 10), now=101.0)
    progress.update(status("writing", 2, 10), now=102.0)
    assert progress.left_s(102.0) == pytest.approx(8.0)


def test_a_pipe_gets_one_line_per_change_and_few_of_progress():
    pipe = io.StringIO()
    with watch(SimpleNamespace(to_build=[1, 2]), pipe) as listen:
        listen(Event("a@dev", "started", "2"))
        for done in range(100):
            listen(status("counting", done, 100))
        listen(Event("a@dev", "built"))
        listen(Event("b@dev", "failed", "ValueError: no\n  at x.py:1"))
    lines = [line.strip().split("  ", 1)[1] for line in pipe.getvalue().splitlines()]
    assert lines[0] == "a@dev  started, attempt 2"
    assert lines[1] == "a@dev  counting 0/100, 0%"
    assert lines[2].startswith("a@dev  built in ")
    assert lines[3] == "b@dev  failed: ValueError: no"
    assert "\x1b" not in pipe.getvalue()


def test_columns_are_as_wide_as_their_widest_cell():
    assert table([["a", 1], ["long", 22]], header=("name", "n")) == ["name  n", "a     1", "long  22"]
    assert table([]) == []
