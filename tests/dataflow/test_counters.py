"""Counters of tasks: exact whoever fails or dies, seen while a task runs, and shown as a table."""

import threading
import time
from pathlib import Path

import faulty_tasks

from lmlab.dataflow import Workers, count


def test_counters_do_not_depend_on_tries_that_failed_or_died(any_runner, tmp_path):
    with any_runner(2) as runner:
        runner.run(faulty_tasks.counted, [(str(tmp_path), number) for number in range(6)], name="sort")
        assert (runner.stages["sort"].failures, runner.deaths) == (1, 1)
        assert runner.counters.of("sort") == {
            "longest": 5,
            "mean": 2.5,
            "records_in": 60,
            "records_out": 15,
            "shortest": 0,
        }
        runner.run(faulty_tasks.counted, [(str(tmp_path), 7)], name="again")
        assert runner.counters.of("again")["records_in"] == 10
        assert runner.counters["records_in"] == 70
        assert runner.counters.get("nothing", 0) == 0


def test_counters_of_a_running_task_are_seen_before_it_ends(any_runner, tmp_path):
    with any_runner(2) as runner:

        def release() -> None:
            deadline = time.monotonic() + 60
            while runner.counters.get("records_in") != 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            (tmp_path / "seen").write_text(str(runner.counters.get("records_in")))

        watcher = threading.Thread(target=release)
        watcher.start()
        runner.run(faulty_tasks.counts_slowly, [str(tmp_path)], name="read")
        watcher.join()
        assert (Path(tmp_path) / "seen").read_text() == "3"
        assert runner.counters["records_in"] == 3  # once, not also what it told on the way


def test_counting_outside_a_task_does_nothing():
    count("records_in", 5)
    with Workers(1) as runner:
        runner.run(abs, [1], name="map")
        count("records_in", 5)
        assert dict(runner.counters) == {}


def test_status_is_a_table_of_stages_and_shows_only_what_was_counted(tmp_path):
    with Workers(1) as runner:
        runner.run(abs, range(3), name="map only")
        (tmp_path / "tried-0").touch()
        (tmp_path / "tried-1").touch()
        runner.run(faulty_tasks.counted, [(str(tmp_path), 0), (str(tmp_path), 1)], name="sort")
        lines = runner.status(detail=True).splitlines()
    assert lines[0].startswith("| stage | tasks | records |")
    assert lines[2].startswith("| map only | 3/3 |  |  | ")
    assert lines[3].startswith("| sort | 2/2 | 1 |  | ")
    assert lines[-1] == "- sort: longest 1, mean 0.5, records_in 20, records_out 1, shortest 0"
    assert "=0" not in "\n".join(lines)
