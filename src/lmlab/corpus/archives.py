"""Reading the members of an archive in one pass, without ever writing one to disk.

What an archive is, its name says: a zip, a tar or one packed file, or a Debian package. Links are no files of
their own, an archive in an archive is not entered, and bombs are refused before they fill the memory.
"""

import bz2
import gzip
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import translate
from typing import IO, Any, NoReturn

import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.corpus.debian import data_tar
from lmlab.storage import Path

MAX_MEMBER_BYTES = 256 << 20
MAX_RATIO = 200
"""So many times its own size an archive may hold: text is packed to a third, to a fiftieth if it repeats."""
_BLOCK = 1 << 20
# The last three are what zipfile raises for flags and lengths that it can't read.
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
_BROKEN = (*_BROKEN, struct.error, ValueError, RuntimeError)
_INFLATED: dict[str, Callable[[Any], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "tgz": lambda file: gzip.GzipFile(fileobj=file),
    "xz": lzma.LZMAFile,
    "bz2": bz2.BZ2File,
    # zstandard's own reader takes a cut file for a whole one.
    "zst": lambda file: pa.CompressedInputStream(file, "zstd"),
}
Wanted = Callable[[str], bool]


def members(
    path: Path, patterns: tuple[str, ...], span: tuple[int, int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every regular file that a pattern matches, in the archive's order.

    `span` is the range of members to look at, for a zip that several tasks share. A name that comes twice is
    given twice. A gzipped tar is inflated once: seeking inflates it anew for every member (110 s, not 12).
    Raises InputError for an archive that is cut off or corrupt, or has a member that no honest one holds.
    """
    matcher = re.compile("|".join(translate(pattern) for pattern in patterns))
    is_wanted: Wanted = lambda name: matcher.match(name) is not None  # noqa: E731 - with its type
    name, size_bytes = "(start)", path.size()
    try:
        with path.open() as packed:
            if path.name.endswith((".whl", ".zip")):
                found = _zip_members(path, packed, is_wanted, span)
            else:
                found = _stream_members(path, packed, is_wanted)
            for name, data in found:
                yield name, data
    except _BROKEN as error:
        raise InputError(
            f"{path} ({format_bytes(size_bytes)}) is truncated or corrupt after {name} "
            f"({type(error).__name__}: {error}). Remove it and fetch it again."
        ) from error


def _zip_members(
    path: Path, packed: io.BufferedIOBase, is_wanted: Wanted, span: tuple[int, int] | None
) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(packed) as archive:
        # What overlaps is counted as often as it is read.
        _check_ratio(path, sum(member.file_size for member in archive.infolist()), path.size())
        for member in archive.infolist()[slice(*span or (None,))]:
            _check(path, member.filename, member.file_size * is_wanted(member.filename))
            if member.is_dir() or not is_wanted(member.filename):
                continue
            if member.flag_bits & 1:
                _refuse(path, f"{member.filename} encrypted, which nobody can read")
            with archive.open(member) as file:
                yield member.filename, _read(file, member.file_size)


def _stream_members(path: Path, packed: io.BufferedIOBase, is_wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    name, file = data_tar(packed) if path.name.endswith(".deb") else (path.name, packed)
    stem, _, ending = name.rpartition(".")
    with _INFLATED.get(ending, lambda file: file)(file) as unpacked:
        if ending not in _INFLATED or ending == "tgz" or stem.endswith(".tar"):
            yield from _tar_members(path, _Stream(path, unpacked), is_wanted)
        elif is_wanted(stem):
            data = unpacked.read(MAX_MEMBER_BYTES + 1)
            _check(path, stem, len(data))
            yield stem, data


def _tar_members(path: Path, stream: Any, is_wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as archive:
        for member in archive:
            name = member.name.removeprefix("./").encode(errors="surrogateescape").decode(errors="replace")
            _check(path, name, member.size * is_wanted(name))
            if member.isfile() and is_wanted(name):
                file = archive.extractfile(member)
                assert file is not None
                yield name, _read(file, member.size)
        # For tarfile a broken header after the first ends the archive well, and so does a cut between two.
        end = stream.recent(archive.offset)
        if len(end) < tarfile.BLOCKSIZE or any(end):
            raise EOFError("no mark of its end where it ends")
    # The checksum of what packs it comes last.
    while stream.read(_BLOCK):
        pass


class _Stream:
    """What comes out of a packed file, counted, and the last of it once more."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._packed_bytes, self._file = path, path.size(), file
        self._blocks, self._count = (b"", b""), 0

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._count += len(block)
        _check_ratio(self._path, self._count, self._packed_bytes)
        self._blocks = (self._blocks[1], block)
        return block

    def recent(self, offset: int) -> bytes:
        """The block of a tar at this offset, if it is in what was read last."""
        last = b"".join(self._blocks)
        start = offset - (self._count - len(last))
        return last[start : start + tarfile.BLOCKSIZE]


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size + 1)
    if len(data) != size:
        raise EOFError(f"got {len(data)} of {size} bytes")
    return data


def _check_ratio(path: Path, size_bytes: int, packed_bytes: int) -> None:
    if size_bytes > max(MAX_RATIO * packed_bytes, MAX_MEMBER_BYTES):
        _refuse(path, f"{format_bytes(size_bytes)} or more, above {MAX_RATIO} times its size, as bombs do")


def _check(path: Path, name: str, size_bytes: int) -> None:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        _refuse(path, f"a member named {name!r}, which points outside")
    if size_bytes > MAX_MEMBER_BYTES:
        limit = format_bytes(MAX_MEMBER_BYTES)
        _refuse(path, f"{name} of {format_bytes(size_bytes)}, above {limit}, which could fill the memory")


def _refuse(path: Path, what: str) -> NoReturn:
    raise InputError(f"{path} holds {what}. Don't use this archive.")
