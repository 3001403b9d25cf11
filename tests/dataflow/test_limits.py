"""What a run puts up with, the same on processes and on a Ray cluster: errors, deaths, silence, memory."""

import os
import re

import faulty_tasks
import pytest

from lmlab.core.errors import ConfigError, InputError, StepFailed
from lmlab.dataflow import Limits, TaskFailed, WorkersLost, read_jsonl
from lmlab.storage import Path as StoragePath


def test_results_come_in_the_order_of_the_tasks(any_runner):
    with any_runner(2) as runner:
        assert runner.run(faulty_tasks.slow_square, range(12), name="squares") == [n * n for n in range(12)]
        assert runner.cpu_s["squares"] > 0


def test_poison_record_fails_after_exactly_three_tries_naming_task_and_record(any_runner, tmp_path):
    with any_runner(2) as runner, pytest.raises(TaskFailed) as caught:
        runner.run(faulty_tasks.poisoned, [str(tmp_path)], name="render")
    assert len(list(tmp_path.iterdir())) == 3
    assert "render: task 1 of 1 failed 3 times" in str(caught.value)
    assert "record 3 (d.html): ValueError: no such entity" in str(caught.value)
    assert "faulty_tasks.py:" in str(caught.value)  # the user's own line, not ours
    assert runner.deaths == 0


def test_bad_input_is_not_tried_again(any_runner, tmp_path):
    with any_runner(2) as runner, pytest.raises(InputError, match=r"page\.tar is cut off"):
        runner.run(faulty_tasks.bad_file, [str(tmp_path)], name="render")
    assert len(list(tmp_path.iterdir())) == 1


def test_worker_killed_in_the_middle_of_a_file_costs_one_death_and_leaves_no_partial_file(
    any_runner, tmp_path
):
    target = tmp_path / "rows.jsonl.zst"
    with any_runner(2) as runner:
        assert runner.run(faulty_tasks.dies_once_while_writing, [str(target)], name="write") == [1000]
        assert runner.deaths == 1
        assert runner.stages["write"].failures == 0
    assert len(list(read_jsonl(StoragePath(target)))) == 1000
    assert [path.name for path in StoragePath(tmp_path).list()] == ["rows.jsonl.zst", "rows.jsonl.zst.died"]


def test_worker_that_always_dies_fails_after_its_own_budget_and_not_before(any_runner, tmp_path):
    limits = Limits(worker_deaths=4, task_failures=2)
    with any_runner(2, limits=limits) as runner, pytest.raises(WorkersLost) as caught:
        runner.run(faulty_tasks.always_dies, [str(tmp_path)], name="hash")
    assert len(list(tmp_path.iterdir())) == 4
    assert re.search(r"hash: task 1 of 1 lost its worker 4 times \(last: .+\)", str(caught.value))
    assert runner.stages["hash"].failures == 0


@pytest.mark.slow
def test_worker_that_always_dies_fails_after_twenty_by_default(any_runner, tmp_path):
    with any_runner(2) as runner, pytest.raises(WorkersLost, match="20 times"):
        runner.run(faulty_tasks.always_dies, [str(tmp_path)], name="hash")
    assert len(list(tmp_path.iterdir())) == 20


def test_deaths_of_all_tasks_together_have_a_budget_too(any_runner, tmp_path):
    limits = Limits(worker_deaths=4, total_deaths=5)
    with any_runner(2, limits=limits) as runner, pytest.raises(WorkersLost, match="5 workers died in all"):
        runner.run(faulty_tasks.always_dies, [str(tmp_path)] * 3, name="hash")
    assert 5 <= len(list(tmp_path.iterdir())) <= 6


@pytest.mark.slow
def test_stopped_worker_is_killed_and_counted_as_a_death(any_runner, tmp_path):
    with any_runner(2, limits=Limits(heartbeat_s=2)) as runner:
        assert runner.run(faulty_tasks.stops_once, [str(tmp_path)], name="read") == ["done"]
        assert runner.deaths == 1


def test_worker_that_outgrows_its_memory_dies_with_that_reason(any_runner, tmp_path):
    limits = Limits(memory_bytes=200 << 20, worker_deaths=2)
    with any_runner(2, limits=limits) as runner:
        assert runner.run(faulty_tasks.fills_memory, [(str(tmp_path), 20)], name="sort") == [20 << 20]
        with pytest.raises(WorkersLost, match=r"last: \d+ MiB of memory, over its limit of 200 MiB"):
            runner.run(faulty_tasks.fills_memory, [(str(tmp_path), 400)], name="sort")
    assert len(list(tmp_path.iterdir())) == 3


def test_worker_that_dies_beside_others_costs_the_others_nothing_but_another_try(any_runner, tmp_path):
    limits = Limits(worker_deaths=3)
    tasks = [(str(tmp_path), number) for number in range(4)]
    with any_runner(4, limits=limits) as runner, pytest.raises(WorkersLost, match="task 2 of 4 lost"):
        runner.run(faulty_tasks.dies_beside_others, tasks, name="hash", threads=4)


def test_threads_pay_for_imports_once_a_worker(any_runner, tmp_path):
    marks = tmp_path / "imports"
    marks.mkdir()
    source = (
        f"import os, pathlib; pathlib.Path({str(marks)!r}, str(os.getpid())).touch(); PROCESS = os.getpid()"
    )
    (tmp_path / "heavy_library.py").write_text(source)
    with any_runner(4) as runner:
        ids = runner.run(faulty_tasks.imports_slowly, [str(tmp_path)] * 8, name="clean", threads=4)
    assert {mark.name for mark in marks.iterdir()} == {str(pid) for pid in ids}
    assert len(set(ids)) <= 4  # for 8 tasks


def test_error_that_cannot_be_unpickled_is_told_and_wedges_nothing(any_runner):
    with any_runner(2) as runner:
        with pytest.raises(StepFailed, match=r"TwoArguments: a\.jsonl, line 7, is bad"):
            runner.run(faulty_tasks.raises_what_cannot_travel, [0], name="read")
        with pytest.raises(TaskFailed, match=r"its result, which can't be sent \(TypeError: cannot pickle"):
            runner.run(faulty_tasks.returns_what_cannot_travel, [0], name="read")
        with pytest.raises(TaskFailed, match="SystemExit: no reason to go on"):
            runner.run(faulty_tasks.leaves, [0], name="read")
        assert runner.run(faulty_tasks.slow_square, [3, 4], name="squares") == [9, 16]
        assert runner.deaths == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_function_that_cannot_be_sent_is_refused_on_any_number_of_workers(workers, any_runner):
    with any_runner(workers) as runner, pytest.raises(ConfigError, match="Define it at the top level"):
        runner.run(lambda task: task, [1], name="map")


def test_large_and_many_results_arrive_whole(any_runner):
    with any_runner(2) as runner:
        assert [len(r) for r in runner.run(bytes, [1, 5_000_000, 0, 3], name="make")] == [1, 5_000_000, 0, 3]
        assert runner.run(abs, range(-500, 0), name="absolute") == list(range(500, 0, -1))
        assert runner.run(abs, [], name="nothing") == []


def test_worker_uses_one_numeric_thread(any_runner, monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with any_runner(2) as runner:
        assert runner.run(faulty_tasks.thread_settings, [0], name="threads") == [("1", "1")]


def test_workers_are_other_processes_and_serve_many_tasks(any_runner):
    with any_runner(2) as runner:
        ids = runner.run(faulty_tasks.process_id, range(20), name="ids")
    assert os.getpid() not in ids
    assert len(set(ids)) < 10
