"""Archives are read in one pass; what is cut off, corrupt or hostile is refused by name."""

import tarfile
import zipfile

import pytest
from sample_archives import write_tar, write_zip

from lmlab.core.errors import InputError, StorageError
from lmlab.corpus import archives
from lmlab.storage import Path

MEMBERS = {f"pkg/docs/{i}.txt": bytes(f"text {i} " * 500, "ascii") for i in range(30)} | {
    "pkg/logo.png": b"\x89PNG"
}
WRITERS = {"a.tar.gz": write_tar, "a.whl": write_zip}


@pytest.mark.parametrize("file", WRITERS)
def test_members_that_match_a_pattern_are_read(tmp_path, file):
    WRITERS[file](tmp_path / file, MEMBERS)
    found = dict(archives.members(Path(tmp_path / file), ("*/docs/*.txt", "*.md")))
    assert found == {name: data for name, data in MEMBERS.items() if name.endswith(".txt")}


@pytest.mark.parametrize("file", WRITERS)
def test_archive_is_refused_wherever_it_is_cut(tmp_path, file):
    WRITERS[file](tmp_path / file, MEMBERS)
    whole = (tmp_path / file).read_bytes()
    for cut in [0, 1, 9, *range(20, len(whole), len(whole) // 40), len(whole) - 1]:
        (tmp_path / f"cut-{file}").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"cut-a\.\S+ \(.*\) is truncated or corrupt after"):
            list(archives.members(Path(tmp_path / f"cut-{file}"), ("*",)))


@pytest.mark.parametrize("file", WRITERS)
def test_flipped_byte_is_found(tmp_path, file):
    WRITERS[file](tmp_path / file, MEMBERS)
    whole = bytearray((tmp_path / file).read_bytes())
    whole[len(whole) // 3] ^= 0x40
    (tmp_path / file).write_bytes(whole)
    with pytest.raises(InputError, match="truncated or corrupt"):
        list(archives.members(Path(tmp_path / file), ("*",)))


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "pkg/../../evil.txt", "..\\evil.txt"])
@pytest.mark.parametrize("file", WRITERS)
def test_member_that_points_outside_is_refused_and_nothing_is_written(tmp_path, file, name):
    (tmp_path / "in").mkdir()
    WRITERS[file](tmp_path / "in" / file, {name: b"x"})
    with pytest.raises(InputError, match="points outside"):
        list(archives.members(Path(tmp_path / "in" / file), ("*",)))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_links_and_devices_are_no_documents(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            entry = tarfile.TarInfo(f"pkg/{kind.decode()}.txt")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    assert list(archives.members(Path(tmp_path / "a.tar.gz"), ("*",))) == []


def test_member_large_enough_to_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.txt", b"\0" * (2 << 20))
    with pytest.raises(InputError, match=r"holds bomb\.txt of 2\.0 MiB, above 1\.0 MiB"):
        list(archives.members(Path(tmp_path / "a.zip"), ("*",)))


def test_missing_archive_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"a\.zip does not exist"):
        list(archives.members(Path(tmp_path / "a.zip"), ("*",)))
