"""Reading the members of an archive in one pass, without ever writing one to disk.

What an archive is, its name says: a zip, a tar or one packed file, or a Debian package. Links are no files of
their own, so what lies under three names is read once; an archive in an archive is not entered, and bombs are
refused before they fill the memory.
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

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.storage import Path

MAX_MEMBER_BYTES = 256 << 20
MAX_RATIO = 200
"""So many times its own size an archive may hold: text is packed to a third, to a fiftieth if it repeats."""
_BLOCK = 1 << 20
# The last three are what zipfile raises for flags and lengths that it can't read.
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
_BROKEN = (*_BROKEN, struct.error, ValueError, RuntimeError)


def _zstd(file: Any) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(file, "zstd")  # zstandard's own reader takes a cut file for a whole one


_INFLATED: dict[str, Callable[[Any], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "tgz": lambda file: gzip.GzipFile(fileobj=file),
    "xz": lzma.LZMAFile,
    "bz2": bz2.BZ2File,
    "zst": _zstd,
}
Wanted = Callable[[str], bool]
Span = tuple[int, int]
Members = Iterator[tuple[str, bytes]]


def members(path: Path, patterns: tuple[str, ...], span: Span | None = None) -> Members:
    """Name and bytes of every regular file that a pattern matches, in the archive's order.

    `span` is the range of members to look at, for a zip that several tasks share. A name that comes twice is
    given twice. A gzipped tar is inflated once: seeking inflates it anew for every member (110 s, not 12).
    Raises InputError for an archive that is cut off or corrupt, or has a member that no honest one holds.
    """
    with path.open() as packed:
        yield from members_of(str(path), packed, patterns, span)


def members_of(
    place: str, packed: io.BufferedIOBase, patterns: tuple[str, ...], span: Span | None = None
) -> Members:
    """The members of an open archive, as `members` gives those of a file; errors name its `place`."""
    matcher = re.compile("|".join(translate(pattern) for pattern in patterns))

    def is_wanted(name: str) -> bool:
        return matcher.match(name) is not None

    name, size_bytes = "(start)", packed.seek(0, io.SEEK_END)
    packed.seek(0)
    try:
        if place.endswith((".whl", ".zip")):
            found = _zip_members(place, packed, is_wanted, span)
        else:
            found = _stream_members(place, packed, is_wanted)
        for name, data in found:
            yield name, data
    except _BROKEN as error:
        raise InputError(
            f"{place} ({format_bytes(size_bytes)}) is truncated or corrupt after {name} "
            f"({type(error).__name__}: {error}). Remove it and fetch it again."
        ) from error


def _zip_members(place: str, packed: io.BufferedIOBase, is_wanted: Wanted, span: Span | None) -> Members:
    size_bytes = packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed) as archive:
        # What overlaps is counted as often as it is read.
        _check_ratio(place, sum(member.file_size for member in archive.infolist()), size_bytes)
        for member in archive.infolist()[slice(*span or (None,))]:
            _check(place, member.filename, member.file_size * is_wanted(member.filename))
            if member.is_dir() or not is_wanted(member.filename):
                continue
            if member.flag_bits & 1:
                _refuse(place, f"{member.filename} encrypted, which nobody can read")
            with archive.open(member) as file:
                yield member.filename, _read(file, member.file_size)


def _stream_members(place: str, packed: io.BufferedIOBase, is_wanted: Wanted) -> Members:
    size_bytes = packed.seek(0, io.SEEK_END)
    packed.seek(0)
    name, file = _data_tar(packed) if place.endswith(".deb") else (place, packed)
    with _INFLATED.get(name.rpartition(".")[2], lambda file: file)(file) as unpacked:
        yield from _tar_members(place, _Stream(place, size_bytes, unpacked), is_wanted)


def _tar_members(place: str, stream: Any, is_wanted: Wanted) -> Members:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as archive:
        for member in archive:
            name = member.name.removeprefix("./").encode(errors="surrogateescape").decode(errors="replace")
            _check(place, name, member.size * is_wanted(name))
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

    def __init__(self, place: str, packed_bytes: int, file: IO[bytes]) -> None:
        self._place, self._packed_bytes, self._file = place, packed_bytes, file
        self._blocks, self._count = (b"", b""), 0

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._count += len(block)
        _check_ratio(self._place, self._count, self._packed_bytes)
        self._blocks = (self._blocks[1], block)
        return block

    def recent(self, offset: int) -> bytes:
        """The block of a tar at this offset, if it is in what was read last."""
        last = b"".join(self._blocks)
        start = offset - (self._count - len(last))
        return last[start : start + tarfile.BLOCKSIZE]


def _data_tar(file: io.BufferedIOBase) -> tuple[str, io.BufferedIOBase]:
    """Name and packed bytes of the files of a Debian package."""
    if file.read(8) != b"!<arch>\n":
        raise EOFError("it does not begin as a Debian package does")
    while len(header := file.read(60)) == 60 and header.endswith(b"`\n"):
        name, size = header[:16].decode("ascii", "replace").strip(" /"), int(header[48:58])
        if name.startswith("data.tar"):
            return name, io.BufferedReader(_Part(file, size), _BLOCK)
        file.seek(size + size % 2, io.SEEK_CUR)
    raise EOFError("it holds no data.tar")


class _Part(io.RawIOBase):
    """So many bytes of a file, as a file that ends where they end."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        if not data and self._left:
            raise EOFError(f"{self._left} bytes are missing")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size + 1)
    if len(data) != size:
        raise EOFError(f"got {len(data)} of {size} bytes")
    return data


def _check_ratio(place: str, size_bytes: int, packed_bytes: int) -> None:
    if size_bytes > max(MAX_RATIO * packed_bytes, MAX_MEMBER_BYTES):
        _refuse(place, f"{format_bytes(size_bytes)} or more, above {MAX_RATIO} times its size, as bombs do")


def _check(place: str, name: str, size_bytes: int) -> None:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        _refuse(place, f"a member named {name!r}, which points outside")
    if size_bytes > MAX_MEMBER_BYTES:
        limit = format_bytes(MAX_MEMBER_BYTES)
        _refuse(place, f"{name} of {format_bytes(size_bytes)}, above {limit}, which could fill the memory")


def _refuse(place: str, what: str) -> NoReturn:
    raise InputError(f"{place} holds {what}. Don't use this archive.")
