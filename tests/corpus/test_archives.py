"""Archives are read in one pass; what is cut off, corrupt or hostile is refused by name."""

import bz2
import functools
import gzip
import io
import lzma
import struct
import tarfile
import zipfile

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings, strategies as st
from sample_archives import write_tar, write_zip

from lmlab.core.errors import InputError, StorageError
from lmlab.corpus import archives
from lmlab.storage import Path

MEMBERS = {f"pkg/docs/{i}.txt": bytes(f"text {i} " * 500, "ascii") for i in range(30)} | {
    "pkg/logo.png": b"\x89PNG"
}


def tar_of(members):
    """A tar without the padding that follows its end."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        end = packed.tell()
    return packed.getvalue()[: end + 1024]


def deb_of(data):
    parts = (
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", b"odd"),
        ("data.tar.zst", zstandard.compress(data)),
    )
    rows = [f"{n:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(d):<10}`\n".encode() + d + b"\n" * (len(d) % 2)
            for n, d in parts]  # fmt: skip
    return b"!<arch>\n" + b"".join(rows)


def write(pack):
    return lambda path, members: path.write_bytes(pack(tar_of(members)))


WRITERS = {
    "a.tar.gz": write_tar,
    "a.tgz": write(gzip.compress),
    "a.whl": write_zip,
    "a.tar": write(bytes),
    "a.tar.xz": write(lzma.compress),
    "a.tar.bz2": write(bz2.compress),
    "a.tar.zst": write(zstandard.compress),
    "a.deb": write(deb_of),
}
# Bytes at the end: the second block of a tar's end, and what makes the length of a Debian package even.
MEANINGLESS = {"a.tar": 512, "a.deb": 1}


@pytest.fixture(scope="module", params=WRITERS)
def archive(request, tmp_path_factory):
    """An archive of each kind, and its bytes."""
    path = tmp_path_factory.mktemp("archive") / request.param
    WRITERS[request.param](path, MEMBERS)
    return path, path.read_bytes()


def test_members_that_match_a_pattern_are_read(archive):
    found = dict(archives.members(Path(archive[0]), ("*/docs/*.txt", "*.md")))
    assert found == {name: data for name, data in MEMBERS.items() if name.endswith(".txt")}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_archive_is_refused_wherever_it_is_cut(archive, share):
    path, whole = archive
    cut = path.with_name(f"cut-{path.name}")
    cut.write_bytes(whole[: int(len(whole) * share)])
    if len(whole) - int(len(whole) * share) <= MEANINGLESS.get(path.name, 0):
        return
    with pytest.raises(InputError, match=r"cut-a\.\S+ \(.*\) is truncated or corrupt after"):
        list(archives.members(Path(cut), ("*",)))


def test_tar_that_is_cut_between_two_members_is_refused(tmp_path):
    whole = tar_of({"a": b"x" * 512, "b": b"y"})
    (tmp_path / "a.tar").write_bytes(whole[:1024])
    with pytest.raises(InputError, match="truncated or corrupt after a"):
        list(archives.members(Path(tmp_path / "a.tar"), ("*",)))


def test_tar_with_a_broken_header_in_it_is_refused(tmp_path):
    whole = bytearray(tar_of({"a": b"x", "b": b"y"}))
    whole[1024 + 3] ^= 1
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(InputError, match="truncated or corrupt after a"):
        list(archives.members(Path(tmp_path / "a.tar"), ("*",)))


# A plain tar has checksums of its headers alone, and zstandard.compress writes none.
@pytest.mark.parametrize("file", ["a.tar.gz", "a.tgz", "a.whl", "a.tar.xz", "a.tar.bz2"])
def test_flipped_byte_is_found(tmp_path, file):
    WRITERS[file](tmp_path / file, MEMBERS)
    spoiled = bytearray((tmp_path / file).read_bytes())
    spoiled[len(spoiled) // 3] ^= 0x40
    (tmp_path / file).write_bytes(spoiled)
    with pytest.raises(InputError, match="truncated or corrupt"):
        list(archives.members(Path(tmp_path / file), ("*",)))


def test_archive_in_a_bucket_is_read_as_one_on_disk(any_root):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "text")
    for name, data in (("a.zip", packed.getvalue()), ("a.tar.gz", gzip.compress(tar_of({"a.txt": b"text"})))):
        (any_root / name).write_bytes(data)
        assert list(archives.members(any_root / name, ("*",))) == [("a.txt", b"text")]


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "pkg/../../evil.txt", "..\\evil.txt"])
@pytest.mark.parametrize("file", ["a.tar.gz", "a.whl"])
def test_member_that_points_outside_is_refused_and_nothing_is_written(tmp_path, file, name):
    (tmp_path / "in").mkdir()
    WRITERS[file](tmp_path / "in" / file, {name: b"x"})
    with pytest.raises(InputError, match="points outside"):
        list(archives.members(Path(tmp_path / "in" / file), ("*",)))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_links_and_devices_are_no_documents(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        first = tarfile.TarInfo("pkg/first.txt")
        first.size = 4
        archive.addfile(first, io.BytesIO(b"text"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo(f"pkg/{kind.decode()}.txt")
            entry.type, entry.linkname = kind, "pkg/first.txt"
            archive.addfile(entry)
    assert list(archives.members(Path(tmp_path / "a.tar.gz"), ("*",))) == [("pkg/first.txt", b"text")]


def test_name_that_comes_twice_is_given_twice(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for text in (b"old", b"new"):
            entry = tarfile.TarInfo("a.txt")
            entry.size = 3
            archive.addfile(entry, io.BytesIO(text))
    spoiled = zipped({"a.txt": b"old", "b.txt": b"new"}).replace(b"b.txt", b"a.txt")
    (tmp_path / "a.zip").write_bytes(spoiled)
    for name in ("a.tar", "a.zip"):
        found = list(archives.members(Path(tmp_path / name), ("*",)))
        assert found == [("a.txt", b"old"), ("a.txt", b"new")]


def test_names_in_another_encoding_are_text(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("voil\xe0.txt"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("voil_.txt", "")
    spoiled = (tmp_path / "a.zip").read_bytes().replace(b"voil_", b"voil\xe0")
    (tmp_path / "a.zip").write_bytes(spoiled)
    for file in ("a.tar", "a.zip"):
        ((name, _),) = archives.members(Path(tmp_path / file), ("*",))
        assert name.encode().startswith(b"voil")


def test_encrypted_zip_is_refused(tmp_path):
    write_zip(tmp_path / "a.zip", {"a.txt": b"text"})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x03\x04") + 6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.zip holds a\.txt encrypted"):
        list(archives.members(Path(tmp_path / "a.zip"), ("*",)))


def test_archive_in_an_archive_is_not_entered(tmp_path):
    inner = functools.reduce(lambda data, i: zipped({f"{i}.zip": data}), range(5), b"the bottom")
    write_zip(tmp_path / "a.zip", {"nested.zip": inner, "a.txt": b"text"})
    assert list(archives.members(Path(tmp_path / "a.zip"), ("*.txt",))) == [("a.txt", b"text")]


def zipped(members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def zeros_tar(size):
    """The header of a member of so many bytes, and 2 MiB of them."""
    entry = tarfile.TarInfo("bomb.txt")
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT) + bytes(2 << 20)


def test_member_large_enough_to_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1 << 20)
    monkeypatch.setattr(archives, "MAX_RATIO", 1e9)
    (tmp_path / "a.zip").write_bytes(zipped({"bomb.txt": bytes(2 << 20)}))
    (tmp_path / "a.tar").write_bytes(zeros_tar(10 << 30))
    for name, size in (("a.zip", "2.0 MiB"), ("a.tar", "10.0 GiB")):
        with pytest.raises(InputError, match=rf"holds bomb\.txt of {size}, above 1\.0 MiB"):
            list(archives.members(Path(tmp_path / name), ("*",)))


def test_archive_of_many_times_its_size_is_refused_though_nobody_asks_for_its_members(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1 << 20)
    (tmp_path / "a.zip").write_bytes(zipped({f"{i}.txt": bytes(1 << 19) for i in range(9)}))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(zeros_tar(10 << 30)))
    for name in ("a.zip", "a.tar.gz"):
        with pytest.raises(InputError, match=r"above 200 times its size, as bombs do"):
            list(archives.members(Path(tmp_path / name), ("*.md",)))


@pytest.mark.slow
def test_ten_gigabytes_of_zeros_are_refused_in_little_memory(tmp_path):
    import resource

    block = (
        gzip.compress(zeros_tar(10 << 30)[:512] + bytes((8 << 20) - 512))
        + gzip.compress(bytes(8 << 20)) * 1279
    )
    (tmp_path / "a.tar.gz").write_bytes(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="as bombs do"):
        list(archives.members(Path(tmp_path / "a.tar.gz"), ("*.md",)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_zip_whose_members_overlap_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1 << 20)
    data = zipped({"a.txt": bytes(1 << 20)})
    start = data.index(b"PK\x01\x02")
    entry, end = data[start : data.index(b"PK\x05\x06")], bytearray(data[data.index(b"PK\x05\x06") :])
    many = 300
    end[8:16] = struct.pack("<HHI", many, many, len(entry) * many)
    (tmp_path / "a.zip").write_bytes(data[:start] + entry * many + end)
    with pytest.raises(InputError, match="as bombs do"):
        list(archives.members(Path(tmp_path / "a.zip"), ("*",)))


def test_missing_archive_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"a\.zip does not exist"):
        list(archives.members(Path(tmp_path / "a.zip"), ("*",)))
