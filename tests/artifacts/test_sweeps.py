"""Sweeps: cells of a grid with a record each, shared by several runners through claims alone."""

import contextvars
import itertools
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path as LocalPath

import msgspec
import pytest
from sample_steps import Number, divide, note, number, overlap, total

from lmlab import grid, sweep
from lmlab.artifacts import Artifact, Out, RunOnly, claims, records, step
from lmlab.artifacts.claims import Owner, Timing
from lmlab.artifacts.runner import Options
from lmlab.core.errors import ConfigError, StepFailed
from lmlab.core.resources import Resources
from lmlab.storage import Path

V = "2026.12.01"
HERE = LocalPath(__file__).parent
FAST = Timing(beat_s=0.1, stale_s=0.5, poll_s=0.02)


def test_a_grid_is_row_major_and_takes_any_iterable():
    cells = grid(lr=iter([1, 2]), width="ab", depth=range(2))
    assert [tuple(cell.values()) for cell in cells] == list(itertools.product([1, 2], "ab", range(2)))


@pytest.mark.parametrize("axes", [{}, {"lr": []}])
def test_a_grid_without_cells_is_refused(axes):
    with pytest.raises(ConfigError, match="nothing to run"):
        grid(**axes)


def test_cells_that_share_a_name_are_refused():
    with pytest.raises(ConfigError, match=r"{'value': 1} and {'value': 2} of the sweep are both called n"):
        sweep(lambda value: number("n", value), value=(1, 2))


def test_a_step_chooses_among_loaded_results_and_every_cell_has_its_record(run, root):
    runs = sweep(lambda lr, width: number(f"n/{lr}-{width}", lr * width), lr=(1, 2), width=(3, 4))
    report = run(pick("best", runs))
    assert report.record(f"best@{V}").result["value"] == 8
    assert [made.address for made in report.record(f"best@{V}").inputs] == [
        f"n/{cell}@{V}" for cell in ("1-3", "1-4", "2-3", "2-4")
    ]
    assert all(records.load(root / f"n/{cell}" / V) for cell in ("1-3", "1-4", "2-3", "2-4"))


@step(inline=True)
def pick(out: Out, runs: list[Number]) -> Number:
    return Number(max(run.value for run in runs))


# -- several runners of one file ----------------------------------------------------------------------


@pytest.fixture
def worker(run_process):
    """`lmlab run sweep_cells.py --race` as one of several workers."""

    def go(name: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        return run_process("sweep_cells.py", "--race", *words, WORKER=name, **variables)

    return go


def test_three_workers_share_twelve_cells_though_one_is_killed_and_one_fails(worker, root, diary):
    alone = ("--max-concurrent", "1")
    killed = worker("killed", *alone, HANG_IN="cells/1-10")
    while "hangs" not in diary.read_text():
        time.sleep(0.02)
    unlucky = worker("unlucky", *alone, FAIL_IN="cells/1-20")
    out, _ = unlucky.communicate(timeout=60)
    # It went on past the held cell, and stopped at its own failure instead of trying the other ten.
    assert unlucky.returncode == 1
    assert "ValueError: bad luck" in out
    steady = [worker("steady", *alone), worker("other", *alone)]
    while len(diary.read_text().splitlines()) < 9:
        time.sleep(0.02)
    killed.kill()
    ends = [child.communicate(timeout=60)[0] for child in steady]
    assert [child.returncode for child in steady] == [0, 0], ends
    ran = Counter(line.split()[1] for line in diary.read_text().splitlines() if not line.startswith("hangs"))
    names = [f"cells/{lr}-{width}" for lr in (1, 2, 3) for width in (10, 20, 30, 40)]
    retried = {"cells/1-10": 2, "cells/1-20": 2}
    assert ran == {name: retried.get(name, 1) for name in [*names, "cells/best"]}
    assert all(records.load(root / name / V) for name in names)
    assert records.load(root / "cells/best" / V).result["cell"] == f"cells/3-40@{V}"


@pytest.mark.slow
def test_workers_share_cells_on_every_store(any_root, worker, diary):
    place = {"LMLAB_ROOT": str(any_root)}
    workers = [worker(name, "--max-concurrent", "2", **place) for name in ("a", "b", "c")]
    ends = [child.communicate(timeout=120)[0] for child in workers]
    assert [child.returncode for child in workers] == [0, 0, 0], ends
    ran = Counter(line.split()[1] for line in diary.read_text().splitlines())
    assert (len(ran), set(ran.values())) == (13, {1})


def test_a_race_goes_on_past_what_is_held_and_takes_it_when_its_owner_falls_silent(run, root, diary):
    elsewhere = Owner("t0", "another-host", "its boot", 4242, 1, "run", {"type": "number"}, time.time())
    claims.claim_path(root / "n/0" / V, 1, "claim").write_bytes(msgspec.json.encode(elsewhere))
    cells = [number(f"n/{i}", i, diary=str(diary)) for i in range(4)]
    report = run(total("sum", cells, diary=str(diary)), options=Options(race=True, timing=FAST))
    assert report.exit_code == 0
    assert diary.read_text().splitlines()[-2:] == [f"n/0@{V}", f"sum@{V}"]
    assert records.load(root / "n/0" / V).attempt == 2


def test_a_race_stops_at_its_own_first_failure_and_a_plain_run_does_not(run, root):
    def cells() -> list[Artifact]:
        return [divide("d/0", 0), *(number(f"n/{i}", i) for i in range(3))]

    lonely = Options(race=True, max_concurrent=1)
    report = run(*cells(), options=lonely)
    assert [ending.kind for ending in report.endings.values()] == ["failed", "stopped", "stopped", "stopped"]
    assert report.exit_code == 1
    plain = run(*cells(), options=Options(max_concurrent=1))
    assert sorted(ending.kind for ending in plain.endings.values()) == ["built", "built", "built", "failed"]


# -- the scheduler ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_max_concurrent_run_at_once(run, limit):
    at_once, most, lock = [0], [0], threading.Lock()
    _watch.set((at_once, most, lock))
    handles = [watched(f"w/{i}") for i in range(8)]
    assert run(*handles, options=Options(max_concurrent=limit)).exit_code == 0
    assert most[0] == limit


def test_the_order_in_which_steps_are_named_does_not_matter(run, diary):
    first = number("a", 1, diary=str(diary))
    second = total("b", [first], diary=str(diary))
    third = total("c", [first, second], diary=str(diary))
    for day, order in enumerate(itertools.permutations((first, second, third)), 1):
        diary.write_text("")
        version = f"2026.12.0{day}"
        assert run(*order, version=version, options=Options(max_concurrent=1)).exit_code == 0
        assert diary.read_text().split() == [f"{name}@{version}" for name in "abc"]


def test_a_failed_step_is_tried_again_unless_that_is_forbidden(run):
    assert run(divide("d", 0)).exit_code == 1
    with pytest.raises(StepFailed, match=rf"d@{V} failed before \(ZeroDivisionError: .*--no-retry-failed"):
        run(divide("d", 0), options=Options(retry_failed=False))
    assert run(divide("d", 0)).endings[f"d@{V}"].failure.cause.startswith("ZeroDivisionError")
    assert run(number("n", 1), options=Options(retry_failed=False)).exit_code == 0


def test_nothing_can_start_with_no_slots():
    with pytest.raises(ConfigError, match="max_concurrent=0"):
        Options(max_concurrent=0)


_watch: contextvars.ContextVar[tuple] = contextvars.ContextVar("watch")
_asked: contextvars.ContextVar[str] = contextvars.ContextVar("asked", default="nobody")


@step(inline=True)
def watched(out: Out) -> Number:
    at_once, most, lock = _watch.get()
    with lock:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
    time.sleep(0.05)
    with lock:
        at_once[0] -= 1
    return Number(0)


@step(inline=True)
def who_asks(out: Out, diary: RunOnly[str]) -> Number:
    note(diary, _asked.get())
    return Number(0)


def test_the_callers_context_reaches_the_threads_that_run_steps(run, diary):
    _asked.set("the caller")
    run(who_asks("w", str(diary)))
    assert diary.read_text() == "the caller\n"


def test_a_plan_of_two_hundred_leaves_over_one_chain_visits_each_node_once(planned, monkeypatch):
    shared = number("s/0", 0)
    for i in range(1, 200):
        shared = total(f"s/{i}", [shared])
    leaves = [total(f"leaf/{i}", [shared]) for i in range(200)]
    visits: Counter[str] = Counter()
    real = Path.read_if_present

    def counted(path: Path) -> bytes | None:
        visits[str(path)] += 1
        return real(path)

    monkeypatch.setattr(Path, "read_if_present", counted)
    plan = planned(*leaves)
    assert len(plan.items) == 400
    looked = {path: count for path, count in visits.items() if path.endswith(records.RECORD)}
    assert (len(looked), set(looked.values())) == (400, {1})


def test_cores_are_shared_by_gangs_as_by_steps(run, diary):
    wide = [overlap(f"o/{i}", str(diary), 0.1).on(Resources(cpu=1, tasks=2)) for i in range(2)]
    assert run(*wide, options=Options(cpu=2)).exit_code == 0
    lines = [line.split()[1] for line in diary.read_text().splitlines()]
    assert len(set(lines[:4])) == 1
