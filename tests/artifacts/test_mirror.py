"""Artifacts of another region's root: found, copied whole under one claim, or not visible at all."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from lmlab.artifacts import Artifact, Out, mirror, records, step
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.runner import execute
from lmlab.core.errors import ArtifactError, BudgetExceeded, ClaimLost
from lmlab.storage import Path, budget

NAME = "data/files/2026.12.01"
COPIER = """
import sys, threading
from lmlab.artifacts import claims, mirror, records
from lmlab.storage import Path

target = Path(sys.argv[1]) / sys.argv[2]
timing = claims.Timing(poll_s=0.02)
done = lambda: records.load(target) is not None
claim = claims.acquire(
    target, {}, is_done=done, timing=timing, stopping=threading.Event(), waiting=lambda owner: None
)
if claim is None:
    print("served")
else:
    found = mirror.locate(sys.argv[2])
    mirror.copy_artifact(found, target, lost=claim.lost)
    records.commit(target, found.record)
    claims.finish(claim, claims.Beat(state="done"))
    print("copied")
"""


@step(inline=True)
def files(out: Out, count: int) -> Artifact:
    for number in range(count):
        (out.path / f"deep-{number % 3}" / f"{number}.bin").write_bytes(
            hashlib.sha256(bytes([number])).digest() * 40
        )
    (out.path / "empty").write_bytes(b"")
    return Artifact()


def build(far: Path, count: int = 40) -> None:
    """An artifact of so many files below a root, made by a run."""
    graph = collect([files("data/files", count)], Versions("2026.12.01"))
    assert execute(make_plan(graph, far), far).exit_code == 0


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """This lab's own root, in europe-west4."""
    monkeypatch.delenv("LMLAB_ROOT")
    monkeypatch.delenv("LMLAB_TRANSFER_BUDGET_GIB", raising=False)
    monkeypatch.setenv("LMLAB_RUN_ID", os.urandom(4).hex())
    return Path(tmp_path / "own")


@pytest.fixture
def far(own, tmp_path, monkeypatch) -> Path:
    """A root in us-central1 that holds an artifact; a folder too."""
    build(Path(tmp_path / "far"))
    (tmp_path / "lmlab.toml").write_text(
        'root = "own"\n[roots]\neurope-west4 = "own"\nus-central1 = "far"\nasia-east1 = "third"\n'
    )
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    return Path(tmp_path / "far")


@pytest.fixture
def slow_far(own, faulty_root, tmp_path, monkeypatch):
    """The same in an object store whose answers are late; gives its proxy."""
    root, faults = faulty_root
    build(root)
    text = (tmp_path / "lmlab.toml").read_text().replace(f'root = "{root}"', f'root = "{own}"')
    (tmp_path / "lmlab.toml").write_text(f'{text}[roots]\neurope-west4 = "own"\nus-central1 = "{root}"\n')
    monkeypatch.delenv("LMLAB_ROOT")
    faults.set({"do": "delay", "method": "GET", "path": "bin", "seconds": 0.1})
    return faults


def visible(root: Path) -> dict[str, bytes]:
    """The artifact's content and record."""
    keep = (records.RECORD, records.FILES)
    found = {path.relative_to(root / NAME): path.read_bytes() for path in (root / NAME).walk()}
    return {name: data for name, data in found.items() if not name.startswith(".") or name in keep}


def paid(own: Path) -> list[int]:
    """What copying artifacts was charged; the test's own looks at the far root are not of interest."""
    return [row.bytes for row in budget.rows(own) if row.path.endswith(NAME)]


def copy_here(own: Path) -> mirror.Found:
    found = mirror.locate(NAME)
    assert found is not None
    mirror.copy_artifact(found, own / NAME, lost=threading.Event())
    return found


def test_the_own_root_comes_first_then_the_order_declared(own, far, tmp_path):
    found = mirror.locate(NAME)
    assert (found.root, found.region, found.folder) == (far, "us-central1", far / NAME)
    shutil.copytree(far, tmp_path / "third")
    assert mirror.locate(NAME).root == far
    shutil.copytree(far, own)
    assert mirror.locate(NAME).root == own
    assert mirror.locate("data/other/2026.12.01") is None


def test_looking_for_an_artifact_writes_nothing(own, far):
    assert mirror.locate(NAME)
    assert own.walk() == []


def test_an_artifact_is_copied_whole_and_its_record_is_left_to_the_caller(own, far):
    found = copy_here(own)
    assert records.load(own / NAME) is None
    assert records.commit(own / NAME, found.record)
    assert visible(own) == visible(far)
    assert records.verify(own / NAME, found.record) == []
    assert paid(own) == [found.record.files.bytes]


def test_an_artifact_above_the_budget_is_refused_before_the_first_byte(own, far):
    # 11 GiB that take no space: what counts is charged before it is read.
    with (far / NAME / "empty").local.open("r+b") as file:
        file.truncate(11 * budget.GIB)
    (far / NAME / records.FILES).remove()
    record = (far / NAME / records.RECORD).read_text()
    size = records.load(far / NAME).files.bytes
    (far / NAME / records.RECORD).write_text(
        record.replace(f'"bytes": {size}', f'"bytes": {size + 11 * budget.GIB}')
    )
    with pytest.raises(BudgetExceeded, match=r"11\.0 GiB of .*from us-central1 into europe-west4"):
        copy_here(own)
    assert not (own / NAME).exists()
    assert paid(own) == []


@pytest.mark.parametrize("damage", ["changed", "longer", "missing", "additional"])
def test_a_source_that_is_not_as_it_was_built_is_refused(own, far, damage):
    path = far / NAME / "deep-1" / "1.bin"
    if damage == "missing":
        path.remove()
    elif damage == "additional":
        (far / NAME / "more").write_text("x")
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + (b"?" if damage == "changed" else data[-1:] + b"?"))
    with pytest.raises(ArtifactError, match=r"data/files@2026.12.01 in .*far is not as it was built"):
        copy_here(own)


def test_without_the_list_of_hashes_the_hash_of_the_tree_decides(own, far):
    (far / NAME / records.FILES).remove()
    found = copy_here(own)
    assert records.verify(own / NAME, found.record) == []
    (own / NAME).remove_tree()
    path = far / NAME / "deep-1" / "1.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="the hash over its files differs"):
        copy_here(own)


def test_what_is_there_already_is_proved_and_not_paid_again(own, far):
    whole = copy_here(own).record.files.bytes
    (own / NAME / "deep-1" / "1.bin").write_bytes(b"x" * 1280)
    (own / NAME / "of a dead attempt").write_text("x")
    copy_here(own)
    assert visible(own) == {name: data for name, data in visible(far).items() if name != records.RECORD}
    assert paid(own) == [whole + 1280]


def test_a_lost_claim_ends_the_copy(own, far):
    lost = threading.Event()
    lost.set()
    with pytest.raises(ClaimLost):
        mirror.copy_artifact(mirror.locate(NAME), own / NAME, lost=lost)
    assert visible(own) == {}


def test_adopted_data_stays_where_it_is(own, far):
    record = records.load(far / NAME)
    adopted = mirror.Found(far, None, NAME, records.Record(**{**vars(record), "source": "/data"}))
    mirror.copy_artifact(adopted, own / NAME, lost=threading.Event())
    assert not (own / NAME).exists()


def test_a_killed_copier_leaves_nothing_visible_and_a_rerun_completes(own, slow_far, tmp_path):
    words = [sys.executable, "-c", COPIER, str(own), NAME]
    first = subprocess.Popen(words)
    while not any((own / NAME).glob("deep-*/*.bin")):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert records.load(own / NAME) is None
    assert 0 < len((own / NAME).glob("deep-*/*.bin")) < 40
    again = subprocess.run(words, check=True, capture_output=True, text=True)
    assert again.stdout.split() == ["copied"]
    assert records.verify(own / NAME, records.load(own / NAME)) == []


@pytest.mark.slow
def test_eight_ranks_make_one_copier(own, slow_far):
    words = [sys.executable, "-c", COPIER, str(own), NAME]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = sorted(rank.communicate()[0].strip() for rank in ranks)
    assert said == ["copied"] + ["served"] * 7
    read = [path for method, path in slow_far.seen() if method == "GET" and "bin" in path]
    assert len(read) == len(set(read)) == 40
