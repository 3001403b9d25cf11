"""The claim protocol: one winner, dead owners replaced, zombies fenced out."""

import os
import threading
import time
from dataclasses import replace

import msgspec
import pytest

from lmlab.artifacts import claims
from lmlab.artifacts.claims import Beat, Claim, Keeper, Owner, Timing
from lmlab.core.errors import ClaimLost
from lmlab.storage import Path

FAST = Timing(beat_s=0.05, stale_s=0.3, poll_s=0.01)


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
    keeper, claim = Keeper(FAST), acquire(root / "a")
    keeper.add(claim)
    time.sleep(0.4)
    keeper.remove(claim)
    keeper.close()
    assert claims.read_beat(root / "a", 1).counter >= 3
    assert not claim.lost.is_set()


def test_a_superseded_claim_is_lost_and_can_not_commit(root, elsewhere):
    keeper, claim = Keeper(FAST), acquire(root / "a")
    claim.check()
    keeper.add(claim)
    plant(root / "a", 2, elsewhere)
    assert claim.lost.wait(3)
    keeper.close()
    with pytest.raises(ClaimLost, match="took over"):
        claim.check()


def test_a_claim_is_lost_before_others_may_take_it_when_beats_do_not_get_through(root):
    keeper, claim = Keeper(Timing(beat_s=0.1, stale_s=0.5)), acquire(root / "a")
    claims.claim_path(root / "a", 1, "beat").make_folder()  # every beat fails
    began = time.monotonic()
    keeper.add(claim)
    assert claim.lost.wait(3)
    assert 0.3 <= time.monotonic() - began < 1.0
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


def test_two_hundred_quick_claims_under_a_fast_heartbeat_lose_none(root):
    keeper = Keeper(Timing(beat_s=0.01, stale_s=5, poll_s=0.01))
    for i in range(200):
        claim = acquire(root / f"step/{i}")
        keeper.add(claim)
        claim.check()
        keeper.remove(claim)
        claims.finish(claim, Beat(state="done"))
        assert not claim.lost.is_set()
    keeper.close()


def test_an_unclear_answer_of_the_store_is_settled_by_reading_back(root, monkeypatch):
    from lmlab.core.errors import StorageError

    real = Path.create_bytes

    def written_but_lost(path: Path, data: bytes) -> bool:
        real(path, data)
        raise StorageError("the connection broke after the request was sent")

    monkeypatch.setattr(Path, "create_bytes", written_but_lost)
    assert acquire(root / "a").number == 1
