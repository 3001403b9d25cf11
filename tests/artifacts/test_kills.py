"""Death at any moment: runners and steps are killed, stopped and frozen; the same command then goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path as LocalPath

import pytest

from lmlab.artifacts import claims, history, records
from lmlab.core import process
from lmlab.storage import Path
from services.places import declare_root

V = "2026.12.01"
SCRIPT = LocalPath(__file__).with_name("experiment_processes.py")
on_each_store = pytest.mark.parametrize("root", ["local", "s3", "gcs"], indirect=True)


@pytest.fixture
def root(request, tmp_path, monkeypatch) -> Path:
    kind = getattr(request, "param", "local")
    endpoint = "" if kind == "local" else request.getfixturevalue(f"{kind}_endpoint")
    return declare_root(kind, endpoint, tmp_path, monkeypatch)


@pytest.fixture
def start(root, diary) -> Iterator[Callable[..., subprocess.Popen]]:
    started: list[subprocess.Popen] = []

    def go(what: str, *flags: str) -> subprocess.Popen:
        command = [sys.executable, str(SCRIPT), str(root), str(diary), what, *flags]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(child)
        return child

    yield go
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    return process.start_ticks(pid) is None


def pids(diary: LocalPath) -> list[int]:
    return [int(word) for word in diary.read_text().split()]


def counted(root: Path) -> int:
    data = (root / "count" / V / "count").read_if_present()
    return int(data or b"0")


def test_kill_9_of_the_runner_kills_its_steps_and_what_they_started(start, diary):
    runner = start("slow")
    until(lambda: len(pids(diary)) == 2)
    runner.kill()
    runner.wait()
    until(lambda: all(is_gone(pid) for pid in pids(diary)))


@on_each_store
def test_after_kill_9_the_same_command_resumes_and_repeats_nothing(start, root, diary):
    runner = start("chain")
    until(lambda: counted(root) >= 5)
    runner.kill()
    runner.wait()
    assert history.entry(root, "count").state == "dead"
    assert records.load(root / "count" / V) is None
    before = counted(root)
    again = start("chain")
    out, _ = again.communicate(timeout=30)
    assert out.startswith("41 ")
    lines = diary.read_text().splitlines()
    assert lines.count(f"a@{V}") == 1
    assert lines[-2].startswith("from ")
    assert int(lines[-2].split()[1]) >= before
    assert lines[-2].endswith("attempt 2")


def test_a_takeover_after_kill_9_on_this_machine_is_at_once(start, root, diary):
    runner = start("count")
    until(lambda: counted(root) >= 1)
    runner.kill()
    runner.wait()
    began = time.monotonic()
    start("count")
    until(lambda: claims.newest(root / "count" / V) == 2)
    assert time.monotonic() - began < 5


def test_ctrl_c_stops_steps_politely_and_the_next_run_continues(start, root, diary):
    runner = start("count")
    until(lambda: counted(root) >= 3)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=20)
    assert runner.returncode == 130
    assert history.entry(root, "count").state == "stopped"
    out, _ = start("count").communicate(timeout=30)
    assert out.startswith("40 ")
    assert int(diary.read_text().splitlines()[1].split()[1]) >= 3


def test_ctrl_c_twice_kills_at_once(start, diary):
    runner = start("stubborn")
    until(lambda: len(pids(diary)) == 1)
    runner.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert not is_gone(pids(diary)[0])
    began = time.monotonic()
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=20)
    assert (runner.returncode, time.monotonic() - began < 1.9) == (130, True)
    assert is_gone(pids(diary)[0])


def test_a_step_that_does_not_stop_is_killed_after_its_grace(start, diary):
    runner = start("stubborn")
    until(lambda: len(pids(diary)) == 1)
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=20)
    assert runner.returncode == 130
    assert is_gone(pids(diary)[0])


@pytest.mark.slow
@on_each_store
def test_a_frozen_owner_is_taken_over_and_its_zombie_neither_commits_nor_computes_on(start, root, diary):
    frozen = start("count", "--fast")
    until(lambda: counted(root) >= 2)
    os.kill(frozen.pid, signal.SIGSTOP)
    winner = start("count", "--fast")
    until(lambda: claims.newest(root / "count" / V) == 2, 15)
    owner = claims.read_owner(root / "count" / V, 2)
    os.kill(frozen.pid, signal.SIGCONT)
    continued = time.monotonic()
    out, _ = winner.communicate(timeout=30)
    told, _ = frozen.communicate(timeout=15)
    assert "ClaimLost" in told or "took over" in told or told.split()[-1] == owner.token
    assert out == f"40 {owner.token}\n"
    assert time.monotonic() - continued < 15
    assert records.load(root / "count" / V).epoch == owner.token


@pytest.mark.slow
@on_each_store
def test_the_step_of_a_frozen_runner_ends_before_another_begins(start, root, diary):
    frozen = start("slow", "--fast")
    until(lambda: len(pids(diary)) == 2)
    os.kill(frozen.pid, signal.SIGSTOP)
    start("slow", "--fast")
    until(lambda: len(pids(diary)) == 4, 15)
    assert [is_gone(pid) for pid in pids(diary)] == [True, True, False, False]
    os.kill(frozen.pid, signal.SIGCONT)
    told, _ = frozen.communicate(timeout=15)
    assert (frozen.returncode, "Another process took over this artifact" in told) == (1, True)


def race(start: Callable[..., subprocess.Popen], diary: LocalPath) -> None:
    runners = [start("race") for _ in range(5)]
    results = [runner.communicate(timeout=60)[0] for runner in runners]
    assert [runner.returncode for runner in runners] == [0] * 5
    assert len(set(results)) == 1
    assert sorted(diary.read_text().splitlines()) == sorted(["+ o", "- o", f"n@{V}", f"sum@{V}"])


@on_each_store
@pytest.mark.parametrize("_repeat", range(2))
def test_five_processes_run_one_experiment_and_every_step_runs_once(start, root, diary, _repeat):
    race(start, diary)


@pytest.mark.slow
@on_each_store
@pytest.mark.parametrize("_repeat", range(20))
def test_five_processes_again_and_again(start, root, diary, _repeat):
    race(start, diary)
