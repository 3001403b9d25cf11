"""Reading the members of an archive in one pass, without ever writing one to disk."""

import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import translate
from typing import IO

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.corpus.debian import data_tar
from lmlab.storage import Path

MAX_MEMBER_BYTES = 256 << 20
# The last is what zipfile raises for a member in a compression that Python can't read.
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
)


def members(
    path: Path, patterns: tuple[str, ...], span: tuple[int, int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every regular file that a pattern matches, in the archive's order.

    `span` is the range of members to look at, for a zip that several tasks share.
    A gzipped tar is inflated once: seeking in it inflates it anew for every member (110 s, not 12).
    Raises InputError for an archive that is cut off or corrupt, or has a member that no honest one holds.
    """
    matcher = re.compile("|".join(translate(pattern) for pattern in patterns))

    def is_wanted(name: str) -> bool:
        return matcher.match(name) is not None

    is_zip, name, size_bytes = path.name.endswith((".whl", ".zip")), "(start)", path.size()
    try:
        for name, data in _zip_members(path, is_wanted, span) if is_zip else _tar_members(path, is_wanted):
            yield name, data
    except _BROKEN as error:
        raise InputError(
            f"{path} ({format_bytes(size_bytes)}) is truncated or corrupt after {name} "
            f"({type(error).__name__}: {error}). Remove it and fetch it again."
        ) from error


def _tar_members(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    # gzip.open checks length and checksum at the end of the stream, which tarfile's own "r|gz" does not.
    open_tar = data_tar if path.name.endswith(".deb") else gzip.open
    with path.open() as packed, open_tar(packed) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                _check(path, name, member.size)
                if member.isfile() and is_wanted(name):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield name, _read(file, member.size)
        while unpacked.read(1 << 20):
            pass


def _zip_members(
    path: Path, is_wanted: Callable[[str], bool], span: tuple[int, int] | None
) -> Iterator[tuple[str, bytes]]:
    with path.open() as packed, zipfile.ZipFile(packed) as archive:
        for member in archive.infolist()[slice(*span or (None,))]:
            _check(path, member.filename, member.file_size)
            if not member.is_dir() and is_wanted(member.filename):
                with archive.open(member) as file:
                    yield member.filename, _read(file, member.file_size)


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError(f"got {len(data)} of {size} bytes")
    return data


def _check(path: Path, name: str, size_bytes: int) -> None:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise InputError(
            f"{path} holds a member named {name!r}, which points outside. Don't use this archive."
        )
    if size_bytes > MAX_MEMBER_BYTES:
        raise InputError(
            f"{path} holds {name} of {format_bytes(size_bytes)}, above {format_bytes(MAX_MEMBER_BYTES)}: "
            "it could fill the memory. Don't use this archive, or split the member."
        )
