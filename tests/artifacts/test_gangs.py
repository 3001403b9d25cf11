"""Gangs: several processes run one body, one claim is taken, and nobody waits for the dead."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path as LocalPath

import pytest
from gang_steps import fall, meet
from sample_steps import number

from lmlab.artifacts import claims, history, ranks, records
from lmlab.artifacts.claims import Timing
from lmlab.artifacts.gang import free_address
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.ranks import Leader, Member
from lmlab.artifacts.runner import Options, execute
from lmlab.core import process
from lmlab.core.errors import ConfigError
from lmlab.core.resources import Resources
from lmlab.storage import Path

V = "2026.12.01"
FOUR = Resources(tasks=4)
HERE = LocalPath(__file__).parent


def pids(diary: LocalPath) -> list[int]:
    return [int(line) for line in diary.read_text().split()]


def are_gone(found: list[int], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(process.start_ticks(pid) for pid in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(process.start_ticks(pid) for pid in found)


def until(diary: LocalPath, lines: int) -> None:
    deadline = time.monotonic() + 30
    while len(diary.read_text().splitlines()) < lines and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_gang_takes_one_claim_and_makes_one_record_with_the_files_of_all_ranks(run, root, diary):
    report = run(meet("m", str(diary)).on(FOUR))
    assert report.exit_code == 0, report.endings
    folder = root / "m" / V
    assert sorted(diary.read_text().splitlines()) == [f"{i} of 4: {i} 4" for i in range(4)]
    record = report.record(f"m@{V}")
    assert (record.result["value"], record.files.count) == (4, 4)
    assert records.verify(folder, record) == []
    assert claims.newest(folder) == 1
    log = history.entry(root, f"m@{V}").log.read_text().splitlines()
    assert sorted(log) == [
        "[rank 1] hello from 1",
        "[rank 2] hello from 2",
        "[rank 3] hello from 3",
        "hello from 0",
    ]


def test_one_ranks_failure_ends_all_with_that_ranks_cause(run, diary):
    report = run(fall("f", 2, str(diary)).on(FOUR))
    failure = report.endings[f"f@{V}"].failure
    assert failure.cause.startswith("rank 2: ValueError: shard 2 is broken")
    assert report.exit_code == 1
    assert len(pids(diary)) == 4
    assert are_gone(pids(diary))


def test_a_lost_claim_ends_every_rank(run, root, diary):
    def take_over() -> None:
        until(diary, 4)
        claims.claim_path(root / "f" / V, 2, "claim").write_text("{}")

    thief = threading.Thread(target=take_over)
    thief.start()
    report = run(fall("f", 9, str(diary)).on(FOUR), options=Options(timing=Timing(beat_s=0.2, stale_s=30)))
    thief.join()
    assert report.endings[f"f@{V}"].failure.kind == "lost"
    assert len(pids(diary)) == 4
    assert are_gone(pids(diary))


def test_an_inline_step_can_be_no_gang():
    with pytest.raises(ConfigError, match="n runs inside the runner"):
        number("n", 1).on(FOUR)


@pytest.mark.slow
def test_a_gang_makes_one_record_on_every_store(any_root, diary):
    plan = make_plan(collect([meet("m", str(diary)).on(FOUR)], Versions(V)), any_root)
    record = execute(plan, any_root).record(f"m@{V}")
    assert (record.result["value"], record.files.count, record.attempt) == (4, 4, 1)
    assert records.verify(any_root / "m" / V, record) == []
    log = claims.claim_path(any_root / "m" / V, 1, "log").read_text()
    assert "[rank 3] hello from 3" in log.splitlines()


# -- ranks that something else started ---------------------------------------------------------------


@pytest.fixture
def start(run_process):
    """`lmlab run gang_steps.py --gang` as rank i of 3."""
    address = free_address("127.0.0.1")

    def go(rank: int, *words: str, size: int = 3, **variables: str) -> subprocess.Popen[str]:
        told = {
            "LMLAB_COORDINATOR": address,
            "LMLAB_GANG_TOKEN": "a secret",
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": str(size),
            **variables,
        }
        return run_process("gang_steps.py", *words, stderr=subprocess.PIPE, **told)

    return go


def test_ranks_started_from_outside_run_one_plan_under_one_claim(start, tmp_path, diary):
    started = [start(rank, "--gang") for rank in range(3)]
    ends = [child.communicate(timeout=60) for child in started]
    assert [child.returncode for child in started] == [0, 0, 0], ends
    assert "built 2 artifacts" in ends[0][0]
    assert ends[1:] == [("", ""), ("", "")]
    root = Path(tmp_path / "root")
    record = records.load(root / "gangs/meet" / V)
    assert (record.result["value"], record.files.count, record.attempt) == (3, 3, 1)
    assert records.load(root / "gangs/after" / V).result["value"] == 30
    assert "[rank 2] hello from 2" in history.entry(root, f"gangs/meet@{V}").log.read_text()
    assert len(diary.read_text().splitlines()) == 3


def test_a_followers_failure_is_the_steps_and_ends_all(start, diary):
    started = [start(rank, "--gang", WHO="1") for rank in range(3)]
    out, _ = started[0].communicate(timeout=60)
    assert "rank 1: ValueError: shard 1 is broken" in out
    assert [child.wait(20) for child in started] == [1, 1, 1]
    assert are_gone(pids(diary))


def test_a_dead_follower_fails_the_step_and_a_dead_leader_ends_its_followers(start, diary):
    started = [start(rank, "--gang", WHO="9") for rank in range(3)]
    until(diary, 3)
    started[2].kill()
    out, _ = started[0].communicate(timeout=20)
    assert "rank 2: It has left the gang" in out
    assert [child.wait(20) for child in started[:2]] == [1, 1]
    assert are_gone(pids(diary))

    diary.write_text("")
    started = [start(rank, "--gang", WHO="9") for rank in range(3)]
    until(diary, 3)
    started[0].kill()
    for child in started[1:]:
        assert "HostError: The leader of this gang is gone" in child.communicate(timeout=20)[1]
        assert child.returncode == 3
    assert are_gone(pids(diary))


def test_ctrl_c_on_the_leader_stops_every_body(start, diary):
    started = [start(rank, "--gang", WHO="9") for rank in range(3)]
    until(diary, 3)
    started[0].send_signal(signal.SIGINT)
    assert [child.wait(20) for child in started] == [130, 130, 130]
    assert are_gone(pids(diary))


def test_ctrl_c_ends_a_rank_that_waits_for_its_leader(start):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        waiting = start(1, "--gang", LMLAB_COORDINATOR=f"127.0.0.1:{nobody.getsockname()[1]}")
        nobody.accept()[0].close()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(20) == 130


def test_a_rank_with_another_token_is_refused_and_the_others_still_meet(start):
    stranger = start(1, "--gang", size=2, LMLAB_GANG_TOKEN="another")
    leader = start(0, "--gang", size=2)
    _, err = stranger.communicate(timeout=30)
    assert (stranger.returncode, err.count("\n")) == (2, 1)
    assert "the leader has another LMLAB_GANG_TOKEN" in err
    late = start(1, "--gang", size=2)
    # They have met: the plan's step of three tasks is refused on both, before anything runs.
    _, err = leader.communicate(timeout=30)
    assert f"gangs/meet@{V} asks for tasks=3, but --gang was started on 2 ranks" in err
    assert (leader.returncode, late.wait(20)) == (2, 2)


def test_a_gang_that_no_step_asks_for_is_refused_on_every_rank(start):
    started = [start(rank, "--gang", size=2, TASKS="1") for rank in range(2)]
    assert "no step asks for more than one" in started[0].communicate(timeout=30)[1]
    assert [child.wait(20) for child in started] == [2, 2]


def test_a_rank_above_zero_without_gang_is_refused_by_name(start):
    refused = start(1)
    _, err = refused.communicate(timeout=30)
    assert (refused.returncode, err.count("\n")) == (2, 1)
    for part in ("SLURM_PROCID=1", "--gang", "step.body"):
        assert part in err


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("LMLAB_GANG_TOKEN", "LMLAB_GANG_TOKEN"),
        ("LMLAB_COORDINATOR", "host:port"),
        ("SLURM_NTASKS", "rank and a size"),
    ],
)
def test_a_gang_that_the_environment_does_not_describe_is_refused(monkeypatch, lacks, message):
    given = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "LMLAB_COORDINATOR": "host:1", "LMLAB_GANG_TOKEN": "t"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert Member.found() == Member(1, 3, ("host", 1), b"t")
    monkeypatch.delenv(lacks)
    with pytest.raises(ConfigError, match=f"lacks .*{message}"):
        Member.found()


def test_a_silent_follower_counts_as_gone_and_a_stranger_keeps_nobody_out(run, diary, monkeypatch):
    monkeypatch.setattr(ranks, "_SILENCE_S", 0.6)
    monkeypatch.setattr(ranks, "_BEAT_S", 0.1)
    host, _, port = free_address("127.0.0.1").rpartition(":")
    member = Member(0, 2, (host, int(port)), b"token")
    links = []

    def come_and_say_nothing() -> None:
        while not links:
            try:
                links.append(socket.create_connection(member.address))
            except ConnectionRefusedError:
                time.sleep(0.02)
        links.append(Client(member.address, authkey=b"token"))
        links[-1].send(1)

    guest = threading.Thread(target=come_and_say_nothing)
    guest.start()
    with Leader(member) as leader:
        guest.join()
        report = run(fall("f", 9, str(diary)).on(Resources(tasks=2)), options=Options(gang=leader))
    for link in links:
        link.close()
    assert report.endings[f"f@{V}"].failure.cause.startswith("rank 1: It has left the gang")
    assert are_gone(pids(diary))


@pytest.mark.slow
def test_sixteen_ranks_call_a_body_directly_and_take_no_claim(tmp_path):
    code = (
        "import os, sys; from gang_steps import after_all; from lmlab.artifacts import Out; "
        "from sample_steps import Number; "
        "out = Out.at(sys.argv[1], rank=int(os.environ['SLURM_PROCID']), ranks=16); "
        "print(out.rank, after_all.body(out, Number(out.rank)).value)"
    )
    place = tmp_path / "root" / "x" / V
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(place)],
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
                "SLURM_PROCID": str(rank),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(16)
    ]
    assert [child.communicate(timeout=60)[0] for child in started] == [f"{i} {i * 10}\n" for i in range(16)]
    assert list(place.iterdir()) == []
