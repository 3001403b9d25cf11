"""Tasks on worker processes: order, both kinds of failure counted apart, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty_tasks
import pytest

from lmlab.core.errors import ConfigError, HostError, InputError, StepFailed
from lmlab.dataflow import Limits, TaskFailed, Workers, WorkersLost, read_jsonl
from lmlab.storage import Path as StoragePath


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks_for_any_number_of_workers(count):
    with Workers(count) as workers:
        assert workers.run(faulty_tasks.slow_square, range(12), name="squares") == [n * n for n in range(12)]


def test_two_workers_are_two_other_processes_and_one_worker_is_this_one():
    with Workers(2) as workers:
        ids = set(workers.run(faulty_tasks.process_id, range(8), name="ids"))
        again = set(workers.run(faulty_tasks.process_id, range(8), name="ids"))
    assert len(ids) == 2
    assert os.getpid() not in ids
    assert again == ids  # imports are paid per worker, not per run
    with Workers(1) as workers:
        assert workers.run(faulty_tasks.process_id, [0], name="ids") == [os.getpid()]


@pytest.mark.parametrize("count", [1, 2])
def test_poison_record_fails_after_exactly_three_tries_naming_task_and_record(count, tmp_path):
    with Workers(count) as workers, pytest.raises(TaskFailed) as caught:
        workers.run(faulty_tasks.poisoned, [str(tmp_path)], name="render")
    assert len(list(tmp_path.iterdir())) == 3
    message = str(caught.value)
    assert "render: task 1 of 1 failed 3 times" in message
    assert "record 3 (d.html): ValueError: no such entity" in message
    assert "faulty_tasks.py:" in message  # the user's own line, not ours
    assert isinstance(caught.value, StepFailed)


@pytest.mark.parametrize("count", [1, 2])
def test_bad_input_is_not_tried_again(count, tmp_path):
    with Workers(count) as workers, pytest.raises(InputError, match=r"page\.tar is cut off"):
        workers.run(faulty_tasks.bad_file, [str(tmp_path)], name="render")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_passing_fault_is_tried_again(count, tmp_path):
    with Workers(count) as workers:
        assert workers.run(faulty_tasks.fails_once, [str(tmp_path)], name="fetch") == ["done"]
        assert workers.deaths == 0


def test_worker_killed_in_the_middle_of_a_file_costs_one_death_and_leaves_no_partial_file(tmp_path):
    target = tmp_path / "rows.jsonl.zst"
    with Workers(2) as workers:
        assert workers.run(faulty_tasks.dies_once_while_writing, [str(target)], name="write") == [1000]
        assert workers.deaths == 1
    assert len(list(read_jsonl(StoragePath(target)))) == 1000
    assert [path.name for path in StoragePath(tmp_path).list()] == ["rows.jsonl.zst", "rows.jsonl.zst.died"]


def test_worker_that_always_dies_fails_after_its_own_budget_and_not_before(tmp_path):
    with Workers(2, Limits(worker_deaths=4)) as workers, pytest.raises(WorkersLost) as caught:
        workers.run(faulty_tasks.always_dies, [str(tmp_path)], name="hash")
    assert len(list(tmp_path.iterdir())) == 4
    assert "hash: task 1 of 1 lost its worker 4 times (last: exit code 7)" in str(caught.value)
    assert isinstance(caught.value, HostError)


@pytest.mark.slow
def test_worker_that_always_dies_fails_after_twenty_by_default(tmp_path):
    with Workers(2) as workers, pytest.raises(WorkersLost, match="20 times"):
        workers.run(faulty_tasks.always_dies, [str(tmp_path)], name="hash")
    assert len(list(tmp_path.iterdir())) == 20


def test_workers_are_usable_after_a_failed_run(tmp_path):
    with Workers(2) as workers:
        with pytest.raises(InputError):
            workers.run(faulty_tasks.bad_file, [str(tmp_path)] * 5, name="render")
        assert workers.run(faulty_tasks.slow_square, [3, 4], name="squares") == [9, 16]


def test_progress_counts_up_to_the_number_of_tasks():
    seen = []
    with Workers(2) as workers:
        workers.run(
            faulty_tasks.slow_square, range(5), name="squares", progress=lambda *done: seen.append(done)
        )
    assert seen == [(n, 5) for n in range(1, 6)]


def test_worker_uses_one_numeric_thread(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with Workers(2) as workers:
        assert workers.run(faulty_tasks.thread_settings, [0], name="threads") == [("1", "1")]


def test_no_workers_at_all_is_a_config_error():
    with pytest.raises(ConfigError, match="workers=0"):
        Workers(0)


def test_worker_dies_with_its_owner(tmp_path):
    mark = tmp_path / "pid"
    program = """if True:
        import sys, faulty_tasks
        from lmlab.dataflow import Workers
        Workers(2).run(faulty_tasks.sleeps_after_mark, [sys.argv[1]], name="sleep")
    """
    owner = subprocess.Popen([sys.executable, "-c", program, str(mark)])
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.01)
    worker = int(mark.read_text())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 10
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
