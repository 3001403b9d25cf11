"""Paths on local disks and in memory: one behaviour, atomic, with errors of one line."""

import errno
import os
import pickle
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path as LocalPath

import pytest
from hypothesis import given, strategies as st

from lmlab.core.errors import ConfigError, InputError, StorageError
from lmlab.storage import Path, read_json, stores, write_json

SEGMENT = st.text(
    st.characters(categories=("L", "N"), include_characters="-_ .+"), min_size=1, max_size=8
).filter(lambda text: text not in (".", ".."))


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path: LocalPath) -> Path:
    if request.param == "local":
        return Path(tmp_path / "with space")
    return Path(f"memory://{tmp_path.name}/with space")


def test_what_is_written_is_read_listed_walked_and_removed(folder):
    (folder / "b" / "deep.txt").write_text("ü")
    (folder / "a.bin").write_bytes(b"123")
    assert (folder / "b/deep.txt").read_text() == "ü"
    assert (folder / "a.bin").size() == 3
    assert [path.name for path in folder.list()] == ["a.bin", "b"]
    assert [path.relative_to(folder) for path in folder.walk()] == ["a.bin", "b/deep.txt"]
    assert (folder / "b").is_dir()
    assert (folder / "b").exists()
    (folder / "a.bin").remove()
    (folder / "a.bin").remove()
    folder.remove_tree()
    assert not (folder / "b/deep.txt").exists()
    assert folder.list() == []


def test_a_file_is_created_once(folder):
    assert (folder / "claim").create_bytes(b"first")
    assert not (folder / "claim").create_bytes(b"second")
    assert (folder / "claim").read_bytes() == b"first"


def test_of_many_creators_one_wins(folder):
    won: list[int] = []
    barrier = threading.Barrier(16)

    def create(number: int) -> None:
        barrier.wait()
        if (folder / "claim").create_bytes(str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (folder / "claim").read_bytes() == str(won[0]).encode()


def test_a_writer_publishes_when_its_block_ends_well(folder):
    with (folder / "sub" / "data.bin").writer() as draft:
        draft.write_bytes(b"whole")
        assert not (folder / "sub" / "data.bin").exists()
        assert folder.walk() == []
    assert (folder / "sub" / "data.bin").read_bytes() == b"whole"


def test_a_writer_that_fails_leaves_nothing(folder):
    def fail() -> None:
        with (folder / "data.bin").writer() as draft:
            draft.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not (folder / "data.bin").exists()
    if folder.is_local:
        assert list(folder.local.iterdir()) == []


def test_missing_files_are_told_apart_from_errors(folder):
    assert (folder / "no").read_if_present() is None
    with pytest.raises(StorageError, match="does not exist, so it can't be read"):
        (folder / "no").read_bytes()
    with pytest.raises(StorageError, match="does not exist"):
        (folder / "no").size()


@given(st.lists(SEGMENT, min_size=1, max_size=4))
def test_joining_and_taking_apart_are_inverse(parts):
    path = Path("/top")
    for part in parts:
        path = path / part
    assert path.relative_to(Path("/top")) == "/".join(parts)
    assert path.name == parts[-1]
    assert path.parent / parts[-1] == path
    assert pickle.loads(pickle.dumps(path)) == path
    assert Path(str(path)) == path


def test_one_place_has_one_spelling(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Path("x") == Path(f"file://{tmp_path}/x") == Path(tmp_path / "x") == Path(tmp_path / "y/../x/")
    assert os.fspath(Path("x")) == str(tmp_path / "x")
    assert Path("x").local == tmp_path / "x"


@pytest.mark.parametrize("part", ["../x", "a/../../x", "/x"])
def test_a_join_can_not_leave_its_folder(part):
    with pytest.raises(ConfigError, match="would lead outside"):
        Path("/top") / part


def test_an_unknown_store_is_refused():
    with pytest.raises(ConfigError, match="ftp://bucket/key is no place lmlab knows how to reach"):
        Path("ftp://bucket/key")


def test_a_path_in_memory_has_no_local_file():
    with pytest.raises(StorageError, match="is not on this machine's disk"):
        os.fspath(Path("memory://x/y"))


def test_a_part_of_the_path_that_is_a_file_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of that path is a file") as caught:
        Path(tmp_path / "file" / "below").write_bytes(b"1")
    assert "\n" not in str(caught.value)
    assert Path(tmp_path / "file" / "below").read_if_present() is None


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the disk is read-only"),
        (errno.EACCES, "may not be written by this user"),
        (errno.ENOTDIR, "a part of that path is a file"),
        (errno.ENOENT, "does not exist"),
        (errno.EISDIR, "is a folder"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_reports_becomes_one_line_that_names_the_file(number, message):
    for error in (
        OSError(number, os.strerror(number)),
        ValueError(f"{os.strerror(number)} (os error {number})\n"),
    ):
        said = str(stores.translate(error, "/data/x", "written"))
        assert said.startswith("/data/x")
        assert message in said
        assert "\n" not in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything: run as another user")
def test_an_unreadable_folder_is_an_error(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(StorageError, match="may not be listed by this user"):
        Path(tmp_path / "closed").list()


def test_equal_values_give_equal_json_bytes(folder):
    write_json(folder / "a.json", {"b": 1, "a": [1.5, None]})
    write_json(folder / "b.json", {"a": [1.5, None], "b": 1})
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    assert read_json(folder / "a.json") == {"a": [1.5, None], "b": 1}


def test_a_broken_json_file_is_named(folder):
    (folder / "a.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"a\.json is not valid JSON"):
        read_json(folder / "a.json")


@pytest.fixture
def tiny_disk(tmp_path: LocalPath) -> Iterator[LocalPath]:
    """A disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tiny_disk):
    with pytest.raises(StorageError, match="the disk is full") as caught:
        Path(tiny_disk / "big").write_bytes(b"x" * 100_000)
    assert "\n" not in str(caught.value)
    with pytest.raises(StorageError, match="the disk is full"), Path(tiny_disk / "big").writer() as draft:
        draft.write_bytes(b"x" * 100_000)
    assert list(tiny_disk.iterdir()) == []
