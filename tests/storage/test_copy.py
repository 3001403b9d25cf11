"""Copies end whole or not at all, and go on where they were cut."""

import doctest
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

from lmlab.core.errors import ConfigError, Refused, StorageError
from lmlab.storage import Path, copy, parts

DOWNLOAD = """
import pathlib, sys
from lmlab.storage import Path, parts

parts._BLOCK = 1 << 16
parts.download(Path(sys.argv[1]), pathlib.Path(sys.argv[2]), parts.Ranges(4), Path(sys.argv[3]))
"""


def noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small tree: nested, with an empty file, and one that commits the others."""
    made = Path(tmp_path / "source")
    for name, size in (("a.bin", 3000), ("deep/b.bin", 70_000), ("deep/empty", 0)):
        (made / name).write_bytes(noise(size))
    (made / ".artifact.json").write_text("{}")
    return made


def content(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place): path.read_bytes() for path in place.walk()}


@pytest.mark.parametrize("module", ["budget", "copy", "regions"])
def test_the_examples_of_the_docstrings_run(module):
    assert doctest.testmod(import_module(f"lmlab.storage.{module}")).failed == 0


# -- publishing ------------------------------------------------------------------------------------


def test_a_stream_of_the_expected_length_is_published(any_root):
    copy.publish(iter([b"abc", b"", b"de"]), any_root / "x", 5)
    assert (any_root / "x").read_bytes() == b"abcde"


@pytest.mark.parametrize("expected", [4, 6])
def test_a_stream_of_another_length_is_never_visible(any_root, expected):
    (any_root / "x").write_text("old")
    with pytest.raises(StorageError, match=f"had 5 instead of {expected} bytes"):
        copy.publish([b"abcde"], any_root / "x", expected)
    assert (any_root / "x").read_text() == "old"
    assert [path.name for path in any_root.walk()] == ["x"]


# -- downloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 31, 1_000_003])
def test_a_file_arrives_whole_in_32_parts(any_root, tmp_path, size):
    (any_root / "x").write_bytes(noise(size))
    parts.download(any_root / "x", tmp_path / "deep" / "y", scratch=Path(tmp_path / "scratch"))
    assert (tmp_path / "deep" / "y").read_bytes() == noise(size)
    assert not (tmp_path / "deep" / "y").stat().st_mode & 0o111
    assert [path.suffix for path in (tmp_path / "scratch").iterdir()] == [".lock"]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (7, 3_000_000), (2_999_999, 3_000_000)])
def test_a_range_comes_in_blocks(any_root, start, end):
    (any_root / "x").write_bytes(noise(3_000_000))
    blocks = list((any_root / "x").chunks(start, end))
    assert b"".join(blocks) == noise(3_000_000)[start:end]
    assert len(blocks) >= (end - start) >> 21


def test_a_file_that_was_replaced_is_not_asked_for_again(faulty_root):
    root, faults = faulty_root
    (root / "x").write_bytes(b"old")
    etag = (root / "x").stat().etag
    (root / "x").write_bytes(b"new content")
    faults.set()
    with pytest.raises(Refused, match="was replaced while it was being read"):
        list((root / "x").chunks(0, 3, etag))
    assert len(faults.seen()) == 1


def test_a_download_goes_on_through_cut_connections(faulty_root, tmp_path, monkeypatch):
    root, faults = faulty_root
    monkeypatch.setattr(parts, "_BLOCK", 1 << 16)
    (root / "x").write_bytes(noise(1_500_000))
    faults.set({"do": "truncate", "method": "GET", "path": "/x", "every": 4})
    parts.download(root / "x", tmp_path / "y", parts.Ranges(4), Path(tmp_path / "scratch"))
    assert (tmp_path / "y").read_bytes() == noise(1_500_000)


def test_a_killed_download_goes_on_at_the_offsets_of_its_parts(faulty_root, tmp_path):
    root, faults = faulty_root
    (root / "x").write_bytes(noise(4 << 20))
    faults.set({"do": "delay", "method": "GET", "seconds": 0.05})
    words = [sys.executable, "-c", DOWNLOAD, str(root / "x"), str(tmp_path / "y"), str(tmp_path / "scratch")]
    first = subprocess.Popen(words)
    while len(faults.seen()) < 24:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "y").exists()
    faults.set()
    subprocess.run(words, check=True)
    assert (tmp_path / "y").read_bytes() == noise(4 << 20)
    assert sum(method == "GET" for method, _ in faults.seen()) < 64 - 12


def test_a_source_that_changes_meanwhile_is_refused(faulty_root, tmp_path, monkeypatch):
    root, faults = faulty_root
    monkeypatch.setattr(parts, "_BLOCK", 1 << 14)
    (root / "x").write_bytes(noise(1 << 18))
    faults.set({"do": "delay", "method": "GET", "seconds": 0.2})
    words = [sys.executable, "-c", DOWNLOAD, str(root / "x"), str(tmp_path / "y"), str(tmp_path / "scratch")]
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not any(method == "GET" for method, _ in faults.seen()):
        time.sleep(0.01)
    (root / "x").write_bytes(noise((1 << 18) + 1)[1:])
    _, errors = first.communicate()
    assert first.returncode
    assert re.search(r"Refused: .* was replaced|StorageError: .* changed while", errors.splitlines()[-1])
    assert not (tmp_path / "y").exists()


def test_a_disk_that_is_too_small_is_one_clean_error(any_root, tmp_path):
    (any_root / "x").write_bytes(noise(1 << 20))
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n{DOWNLOAD}"
    words = [sys.executable, "-c", limited, any_root / "x", tmp_path / "y", tmp_path / "scratch"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        f"StorageError: {tmp_path}/y could not be written: the disk is full. Free some space, or choose "
        "another --root."
    )


def test_parts_of_one_source_are_not_taken_for_another_version(any_root, tmp_path):
    scratch, target = Path(tmp_path / "scratch"), tmp_path / "y"
    for size in (1000, 1000):
        data = os.urandom(size)
        (any_root / "x").write_bytes(data)
        parts.download(any_root / "x", target, parts.Ranges(4), scratch)
        assert target.read_bytes() == data


# -- verified copies and syncs ---------------------------------------------------------------------


def test_a_verified_copy_proves_both_ends_and_sends_only_what_differs(folder, any_root):
    first = copy.verified_copy(folder, any_root / "copy")
    assert content(any_root / "copy") == content(folder)
    assert (first.files, first.bytes, first.present) == (4, 73_002, 0)
    (any_root / "copy" / "a.bin").write_bytes(noise(3001)[:3000])
    second = copy.verified_copy(folder, any_root / "copy")
    assert (second.present, second.sha256) == (3, first.sha256)
    assert content(any_root / "copy") == content(folder)


def test_a_verified_copy_of_one_file(folder, any_root):
    done = copy.verified_copy(folder / "a.bin", any_root / "b.bin")
    assert (done.files, done.sha256) == (1, hashlib.sha256(noise(3000)).hexdigest())
    assert (any_root / "b.bin").read_bytes() == noise(3000)


def test_the_file_that_commits_is_copied_last(folder, tmp_path):
    target = Path(tmp_path / "target")
    (target / "deep" / "b.bin" / "in the way").write_text("")
    for way in (copy.verified_copy, copy.sync):
        with pytest.raises(StorageError):
            way(folder, target)
        assert not (target / ".artifact.json").exists()


def test_a_sync_copies_what_is_missing_or_differs_and_then_nothing(folder, any_root):
    target = any_root / "copy"
    planned = copy.sync(folder, target, dry_run=True)
    assert {(action.kind, action.name, action.why) for action in planned} == {
        ("copy", name, "missing") for name in content(folder)
    }
    assert target.walk() == []
    copy.sync(folder, target)
    assert content(target) == content(folder)
    assert copy.sync(folder, target) == []
    (folder / "a.bin").write_bytes(b"shorter")
    assert [(action.name, action.why) for action in copy.sync(folder, target)] == [("a.bin", "size")]
    assert content(target) == content(folder)


def test_only_a_checksum_sees_a_file_of_equal_size_and_older_date(folder, any_root):
    target = any_root / "copy"
    copy.sync(folder, target)
    (target / "a.bin").write_bytes(b"x" * 3000)
    assert copy.sync(folder, target) == []
    assert [(a.name, a.why) for a in copy.sync(folder, target, checksum=True)] == [("a.bin", "content")]
    assert content(target) == content(folder)


def test_a_sync_deletes_only_when_asked_and_only_after_every_copy(folder, tmp_path):
    target = Path(tmp_path / "target")
    (target / "extra").write_text("x")
    assert copy.sync(folder, target)
    assert (target / "extra").exists()
    (target / "a.bin").remove()
    (target / "a.bin" / "in the way").write_text("")
    with pytest.raises(StorageError):
        copy.sync(folder, target, delete=True)
    assert (target / "extra").exists()
    (target / "a.bin").remove_tree()
    copy.sync(folder, target, delete=True)
    assert content(target) == content(folder)


def test_nothing_is_copied_onto_itself_or_into_itself(folder):
    for target in (folder, folder / "deep"):
        for way in (copy.verified_copy, copy.sync):
            with pytest.raises(ConfigError, match="can't be copied into"):
                way(folder, target)
    copy.sync(folder, Path(f"{folder}-2"))
    assert content(folder) == content(Path(f"{folder}-2"))


@pytest.mark.slow
def test_a_large_file_moves_between_stores_in_parts(any_root, tmp_path, monkeypatch):
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    data = noise(40 << 20)
    (any_root / "large").write_bytes(data)
    elsewhere = Path(f"memory://{any_root.name}/large")
    for target in (Path(tmp_path / "large"), elsewhere):
        copy.copy_file(any_root / "large", target)
        assert target.read_bytes() == data
    digest = (len(data), hashlib.sha256(data).hexdigest())
    assert copy.copy_hashed(any_root / "large", Path(tmp_path / "again")) == digest
    assert copy.verified_copy(any_root / "large", elsewhere).present == 1
    left = [path for path in Path(tmp_path / "cache").walk() if not path.name.endswith(".lock")]
    assert left == []
