"""What is special to local workers: processes or this one, signals, places, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty_tasks
import pytest

from lmlab.core.errors import ConfigError, InputError
from lmlab.core.resources import Resources
from lmlab.dataflow import Limits, TaskFailed, Workers


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks_for_any_number_of_workers(count):
    with Workers(count) as workers:
        assert workers.run(faulty_tasks.slow_square, range(12), name="squares") == [n * n for n in range(12)]


def test_two_workers_are_two_other_processes_and_one_worker_is_this_one():
    with Workers(2) as workers:
        ids = set(workers.run(faulty_tasks.process_id, range(5), name="ids"))
        again = set(workers.run(faulty_tasks.process_id, range(8), name="ids"))
    assert len(ids) == 2
    assert os.getpid() not in ids
    assert again == ids  # imports are paid per worker, not per run
    with Workers(1) as workers:
        assert workers.run(faulty_tasks.process_id, [0], name="ids") == [os.getpid()]


def test_poison_record_fails_after_exactly_three_tries_in_this_process_too(tmp_path):
    with Workers(1) as workers, pytest.raises(TaskFailed, match="render: task 1 of 1 failed 3 times"):
        workers.run(faulty_tasks.poisoned, [str(tmp_path)], name="render")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_passing_fault_is_tried_again(count, tmp_path):
    with Workers(count) as workers:
        assert workers.run(faulty_tasks.fails_once, [str(tmp_path)], name="fetch") == ["done"]
        assert workers.deaths == 0


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


def test_no_workers_at_all_is_a_config_error():
    with pytest.raises(ConfigError, match="workers=0"):
        Workers(0)


def test_memory_limit_needs_a_process_of_its_own():
    with pytest.raises(ConfigError, match="Give workers=2"):
        Workers(1, Limits(memory_bytes=1 << 30))


@pytest.mark.parametrize(
    ("asked", "threads", "expected"),
    [
        (Resources(), 1, (4, 4)),
        (Resources(cpu=2), 1, (2, 2)),
        (Resources(cpu=9), 1, (1, 1)),
        (Resources(), 2, (4, 2)),
        (Resources(), 9, (4, 1)),
        (Resources(memory_bytes=1 << 50), 1, (1, 1)),
    ],
)
def test_tasks_are_packed_into_workers_by_cores_memory_and_threads(asked, threads, expected, tmp_path):
    tasks_at_once, processes = expected
    with Workers(4) as workers:
        # First, so that all workers stand when it is seen how many tasks run at once.
        ids = workers.run(faulty_tasks.process_id, range(8), name="ids", resources=asked, threads=threads)
        seen = workers.run(
            faulty_tasks.at_once,
            [str(tmp_path)] * 2 * tasks_at_once,
            name="map",
            resources=asked,
            threads=threads,
        )
    assert max(seen) == tasks_at_once
    assert len(set(ids)) == processes
    assert os.getpid() not in ids  # one process is still another one


def test_function_of_the_running_script_is_refused_where_no_process_could_find_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom lmlab.dataflow import Workers\n\n\ndef double(n):\n    return 2 * n\n\n\n"
        "with Workers(int(sys.argv[1])) as workers:\n    print(workers.run(double, [4], name='double'))\n"
    )
    done = [
        subprocess.run([sys.executable, script, count], check=False, capture_output=True, text=True)
        for count in ("1", "2")
    ]
    assert done[0].stdout == "[8]\n"
    assert "ConfigError: The function stands in the script that is running" in done[1].stderr


def test_signal_to_the_whole_group_ends_the_owner_and_makes_no_retries(tmp_path):
    program = """if True:
        import sys, faulty_tasks
        from lmlab.dataflow import Workers
        workers = Workers(2)
        try:
            with workers:
                workers.run(faulty_tasks.sleeps_after_mark, [sys.argv[1]], name="sleep")
        except KeyboardInterrupt:
            print("deaths", workers.deaths)
    """
    mark = tmp_path / "pid"
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(mark)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.01)
    first = mark.read_text()
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.communicate(timeout=20)[0] == "deaths 0\n"
    assert mark.read_text() == first  # nobody tried again
    assert not _runs(int(first))


@pytest.mark.slow
def test_owner_that_was_stopped_itself_does_not_take_its_workers_for_wedged(tmp_path):
    program = """if True:
        import sys, faulty_tasks
        from lmlab.dataflow import Limits, Workers
        with Workers(2, Limits(heartbeat_s=3)) as workers:
            workers.run(faulty_tasks.waits_for, [sys.argv[1]], name="wait")
            print("deaths", workers.deaths)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    while not (tmp_path / "waits").exists():
        time.sleep(0.01)
    worker = int((tmp_path / "waits").read_text())
    # A machine that sleeps stops both; what counts is who looked on meanwhile.
    os.kill(owner.pid, signal.SIGSTOP)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(4)
    os.kill(owner.pid, signal.SIGCONT)
    time.sleep(0.5)
    os.kill(worker, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert owner.communicate(timeout=20)[0] == "deaths 0\n"


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
