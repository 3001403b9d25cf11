"""The claim protocol on every kind of store: one winner, dead owners replaced, zombies fenced out."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from lmlab.artifacts import claims
from lmlab.artifacts.claims import Beat, Claim, Keeper, Owner, Timing
from lmlab.core.errors import ClaimLost
from lmlab.storage import Path

FAST = Timing(beat_s=0.05, stale_s=0.4, poll_s=0.01)


@pytest.fixture
def root(any_root) -> Path:
    return any_root


@pytest.fixture
def local_root(tmp_path) -> Path:
    return Path(tmp_path / "root")


def acquire(
    folder: Path, *, timing: Timing = FAST, done=lambda: False, stopping=None, seen=None
) -> Claim | None:
    return claims.acquire(
        folder,
        {"type": "f"},
        is_done=done,
        timing=timing,
        stopping=stopping or threading.Event(),
        waiting=(seen if seen is not None else []).append,
    )


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def plant(folder: Path, number: int, owner: Owner, beat: Beat | None = None) -> None:
    claims.claim_path(folder, number, "claim").write_bytes(msgspec.json.encode(owner))
    if beat is not None:
        claims.claim_path(folder, number, "beat").write_bytes(msgspec.json.encode(beat))


@pytest.fixture
def elsewhere() -> Owner:
    """An owner on a machine whose processes can't be looked up."""
    return Owner("t0", "another-host", "its boot", 4242, 1, "run", {"type": "f"}, time.time())


@pytest.fixture
def here(root) -> Owner:
    """This very process as an owner."""
    claim = acquire(root / "probe")
    owner = claims.read_owner(root / "probe", 1)
    assert claim is not None
    assert owner is not None
    return owner


def test_the_first_claim_is_number_one(root):
    claim = acquire(root / "a")
    assert (claim.number, claim.previous) == (1, None)
    assert claims.read_owner(root / "a", 1).pid == os.getpid()


def test_many_threads_race_and_one_wins(root):
    claimed: list[Claim] = []
    stopping = threading.Event()
    barrier = threading.Barrier(8)

    def compete() -> None:
        barrier.wait()
        claim = acquire(root / "a", timing=Timing(stale_s=60, poll_s=0.01), stopping=stopping)
        if claim is not None:
            claimed.append(claim)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    stopping.set()
    for thread in threads:
        thread.join()
    assert [claim.number for claim in claimed] == [1]


def test_a_silent_owner_of_another_machine_is_waited_for_until_stale(root, elsewhere):
    plant(root / "a", 1, elsewhere)
    seen: list[Owner] = []
    began = time.monotonic()
    claim = acquire(root / "a", seen=seen)
    assert FAST.stale_s <= time.monotonic() - began < 3
    assert (claim.number, claim.previous) == (2, elsewhere)
    assert seen[0] == elsewhere


def test_an_owner_whose_counter_moves_is_not_taken_over(root, elsewhere):
    plant(root / "a", 1, elsewhere)
    stopping = threading.Event()
    waiter = threading.Thread(target=acquire, args=(root / "a",), kwargs={"stopping": stopping})
    waiter.start()
    for counter in range(12):
        time.sleep(0.05)
        plant(root / "a", 1, elsewhere, Beat(counter))
    stopping.set()
    waiter.join()
    assert claims.newest(root / "a") == 1


def test_a_dead_process_of_this_boot_is_replaced_at_once(root, here):
    plant(root / "a", 1, replace(here, started_ticks=(here.started_ticks or 0) - 1))
    began = time.monotonic()
    assert acquire(root / "a", timing=Timing()).number == 2
    assert time.monotonic() - began < 1


def test_a_living_process_of_this_boot_is_waited_for(root, here):
    plant(root / "a", 1, here)
    stopping = threading.Event()
    threading.Timer(0.2, stopping.set).start()
    assert acquire(root / "a", timing=Timing(poll_s=0.01), stopping=stopping) is None


@pytest.mark.parametrize("state", ["failed", "stopped", "done"])
def test_an_ended_claim_is_replaced_at_once(root, elsewhere, state):
    plant(root / "a", 1, elsewhere, Beat(1, state))
    assert acquire(root / "a", timing=Timing()).number == 2


def test_whether_it_is_built_is_asked_again_after_the_claim_is_won(root):
    answers = iter([False, True])
    assert acquire(root / "a", done=lambda: next(answers)) is None
    assert claims.read_beat(root / "a", 1).state == "done"


def test_an_unreadable_claim_file_does_not_block_for_ever(root):
    claims.claim_path(root / "a", 1, "claim").write_text("{")
    assert acquire(root / "a").number == 2


def test_the_heartbeat_moves_the_counter(root):
    keeper, claim = Keeper(FAST), acquire(root / "a", timing=Timing(beat_s=0.05))
    keeper.add(claim)
    until(lambda: claims.read_beat(root / "a", 1).counter >= 3)
    keeper.remove(claim)
    keeper.close()
    assert not claim.is_lost()


def test_a_superseded_claim_is_lost_and_can_not_commit(root, elsewhere):
    keeper, claim = Keeper(FAST), acquire(root / "a", timing=Timing(beat_s=0.05))
    claim.check()
    keeper.add(claim)
    plant(root / "a", 2, elsewhere)
    until(claim.is_lost)
    keeper.close()
    with pytest.raises(ClaimLost, match="took over"):
        claim.check()


def test_a_claim_is_lost_before_others_may_take_it_when_beats_do_not_get_through(local_root):
    timing = Timing(beat_s=0.1, stale_s=0.5)
    keeper, claim = Keeper(timing), acquire(local_root / "a", timing=timing)
    claims.claim_path(local_root / "a", 1, "beat").make_folder()  # every beat fails
    began = time.monotonic()
    keeper.add(claim)
    until(claim.is_lost)
    assert 0.3 <= time.monotonic() - began < 1.0
    keeper.close()


def test_a_beat_that_hangs_hides_no_loss_and_silences_no_other_claim(faulty_root):
    root, faults = faulty_root
    timing = Timing(beat_s=0.2, stale_s=1.5)
    keeper = Keeper(timing)
    stuck, other = (acquire(root / name, timing=timing) for name in ("stuck", "other"))
    faults.set({"do": "withhold", "path": "stuck"})
    for claim in (stuck, other):
        keeper.add(claim)
    began = time.monotonic()
    until(stuck.is_lost)
    assert time.monotonic() - began < 1.5
    assert not other.is_lost()
    faults.set()
    keeper.close()


def test_a_store_that_fails_for_a_moment_loses_no_claim(faulty_root):
    root, faults = faulty_root
    timing = Timing(beat_s=0.2, stale_s=30)
    keeper, claim = Keeper(timing), acquire(root / "a", timing=timing)
    faults.set({"do": "status", "code": 503, "times": 4})
    keeper.add(claim)
    until(lambda: claims.read_beat(root / "a", 1).counter >= 2)
    assert not claim.is_lost()
    keeper.close()


def test_no_beat_follows_the_final_one(root):
    keeper, claim = Keeper(Timing(beat_s=0.01, stale_s=5)), acquire(root / "a")
    keeper.add(claim)
    time.sleep(0.1)
    keeper.remove(claim)
    claims.finish(claim, Beat(state="done"))
    time.sleep(0.1)
    assert claims.read_beat(root / "a", 1).state == "done"
    keeper.close()


def quick_claims(root: Path, count: int) -> None:
    keeper = Keeper(Timing(beat_s=0.01))
    for i in range(count):
        claim = acquire(root / f"step/{i}", timing=Timing(beat_s=0.01))
        keeper.add(claim)
        claim.check()
        keeper.remove(claim)
        claims.finish(claim, Beat(state="done"))
        assert not claim.is_lost()
        assert claims.read_beat(root / f"step/{i}", 1).state == "done"
    keeper.close()


def test_quick_claims_under_a_fast_heartbeat_lose_none(root):
    quick_claims(root, 200 if root.is_local else 10)


@pytest.mark.slow
def test_two_hundred_quick_claims_under_a_fast_heartbeat_lose_none(root):
    quick_claims(root, 200)


@pytest.mark.parametrize("do", ["drop", "refuse"])
def test_a_claim_whose_answer_got_lost_is_won_once(faulty_root, do):
    root, faults = faulty_root
    faults.set({"do": do, "method": "PUT", "path": "claim", "every": 2})
    for i in range(6):
        assert acquire(root / str(i)).number == 1
        assert claims.read_owner(root / str(i), 1).pid == os.getpid()
    assert {claims.newest(root / str(i)) for i in range(6)} == {1}
