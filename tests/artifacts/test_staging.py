"""Steps whose libraries need real files, on every kind of root."""

import pytest
from staged_steps import append, map_parts, write_parts

from lmlab.artifacts import records
from lmlab.core import environ
from lmlab.storage import Path

V = "2026.12.01"


@pytest.fixture
def root(any_root) -> Path:
    return any_root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder) for path in folder.walk() if "/.claims/" not in str(path)]


def test_what_was_written_to_the_disk_is_in_the_root_and_proved(run, root):
    report = run(write_parts("parts", 4))
    record, folder = report.record(f"parts@{V}"), root / "parts" / V
    assert names(folder) == [".artifact.json", ".files.json", *(f"deep/{i}/text" for i in range(4))]
    assert (record.files.count, record.files.bytes) == (4, 6)
    assert records.verify(folder, record) == []


def test_inputs_are_real_files_copied_once_and_proved(run, root, tmp_path):
    parts = write_parts("parts", 4)
    run(parts)
    report = run(map_parts("size", parts, parts["deep"]))
    assert [e.failure.cause for e in report.failed.values()] == []
    assert report.record(f"size@{V}").result["bytes"] == 3
    if root.is_local:
        return
    (copied,) = (tmp_path / "cache").rglob("deep/3/text")
    before = copied.stat().st_mtime_ns
    run(map_parts("again", parts, parts["deep"]))
    assert copied.stat().st_mtime_ns == before
    copied.unlink()  # as by a sweep of the cache
    run(map_parts("third", parts, parts["deep"]))
    assert copied.read_text() == "xxx"


@pytest.mark.parametrize("any_root", ["s3", "gcs"], indirect=True)
def test_a_changed_byte_in_a_bucket_is_never_handed_to_a_step(run, root):
    parts = write_parts("parts", 4)
    run(parts)
    (root / "parts" / V / "deep/2/text").write_text("xy")
    (failed,) = run(map_parts("size", parts, parts["deep"])).failed.values()
    assert "deep/2/text" in failed.failure.cause
    assert "is not as it was built" in failed.failure.cause


@pytest.mark.parametrize("how", ["fail", "SIGINT"])
def test_a_step_that_resumes_goes_on_from_what_was_sent(run, root, how):
    run(append("lines", 6, fails_at=4, how=how))
    folder = root / "lines" / V
    assert names(folder) == ["4.done", "lines"]
    assert run(append("lines", 6)).record(f"lines@{V}").result["bytes"] == 12
    assert (folder / "lines").read_text() == "0\n1\n2\n3\n4\n5\n"
    assert names(folder) == [".artifact.json", ".files.json", "6.done", "lines"]


def test_a_step_that_fails_leaves_nothing_in_the_root_or_on_the_disk(run, root):
    (failed,) = run(write_parts("parts", 3, fails=True)).failed.values()
    assert "asked to fail" in failed.failure.cause
    assert names(root / "parts" / V) == []
    assert list((environ.cache_dir() / "staged").glob("*")) == []


@pytest.mark.parametrize("any_root", ["s3", "gcs"], indirect=True)
def test_an_attempt_that_is_ended_because_its_claim_is_lost_sends_nothing(run, root):
    run(append("lines", 6, fails_at=4, how="SIGTERM"))
    assert names(root / "lines" / V) == []


@pytest.mark.parametrize("any_root", ["s3"], indirect=True)
def test_what_a_killed_step_left_on_the_disk_goes_when_the_next_one_starts(run, root):
    run(append("lines", 6, fails_at=4, how="SIGKILL"))
    staged = environ.cache_dir() / "staged"
    assert len(list(staged.glob("*/lines"))) == 1
    run(write_parts("parts", 2))
    assert list(staged.iterdir()) == []
