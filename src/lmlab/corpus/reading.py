"""Sources of any format as records: members of archives, rows of files. Nothing is rendered here.

What a file is, its name says; whether it is read whole or row by row, the renderer of its slice says.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.corpus.archives import MAX_MEMBER_BYTES, Span, members
from lmlab.corpus.registry import Slice
from lmlab.corpus.render import GROUPS, MEMBERS, ROWS, Documents
from lmlab.corpus.render.files import web_page
from lmlab.corpus.warc import WebRecord, records
from lmlab.dataflow.files import row_groups
from lmlab.storage import Path

ARCHIVES = (".zip", ".whl", ".tgz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".deb")
CRAWLS = (".warc", ".warc.gz", ".warc.zst")
PACKED = {"gz": "gzip", "dz": "gzip", "zst": "zstd", "bz2": "bz2"}
SPLIT_BYTES = 32 << 20
"""A larger zip or Parquet file is read by several tasks, so that it does not hold up one worker alone."""
_BLOCK = 1 << 20
_HEADLESS = {"CID-SMILES": ("cid", "smiles")}
# What a record of these starts with, and what it ends with.
_MARKS = {"fasta": (b">", None), "fa": (b">", None), "pgn": (b"[Event ", None), "dat": (None, b"//")}


class Record(NamedTuple):
    """One thing to render."""

    piece: Slice
    name: str
    """Of the member, and the number of the row from 1."""
    raw: Any
    """Bytes of a member or a line, a row, or the rows of a group."""


def spans(path: Path) -> list[Span | None]:
    """The ranges of members or row groups that separate tasks read; [None] where a format has none."""
    sizes: list[int] = []
    if path.name.endswith((".zip", ".whl")) and path.size() > SPLIT_BYTES:
        with path.open() as file, suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
            sizes = [member.compress_size for member in archive.infolist()]
    elif path.name.endswith(".parquet"):
        sizes = row_groups(path)
    found: list[Span] = []
    start, size = 0, 0
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= SPLIT_BYTES or end == len(sizes):
            found.append((start, end))
            start, size = end, 0
    return [*found] or [None]


def read(path: Path, slices: Sequence[Slice], span: Span | None = None, name: str = "") -> Iterator[Record]:
    """The records of a file that its slices ask for; InputError if it is cut off or is no such file.

    `name` is what the patterns of a slice are held against, if it is not the last part of the path.
    """
    last = "the start"
    try:
        for record in _read(path, slices, span, name or path.name):
            last = record.name
            yield record
    except (OSError, EOFError, pa.ArrowInvalid, csv.Error, orjson.JSONDecodeError) as error:
        raise InputError(
            f"{path} can't be read after {last} ({type(error).__name__}: {str(error)[:200]}). It may be cut "
            "off, or no such file as its name says. Fetch it again."
        ) from error


def _read(path: Path, slices: Sequence[Slice], span: Span | None, name: str) -> Iterator[Record]:
    if path.name.endswith(ARCHIVES):
        patterns = tuple(pattern for piece in slices for pattern in piece.members)
        for member, data in members(path, patterns, span):
            if piece := _piece(slices, member):
                yield from _records(piece, member, io.BytesIO(data), None)
    elif (piece := _piece(slices, name)) and path.name.endswith(CRAWLS):
        yield from (Record(piece, page.url or f"record {i}", page) for i, page in enumerate(records(path)))
    elif piece:
        with path.open() as file:
            yield from _records(piece, name, file, span)


def _piece(slices: Sequence[Slice], name: str) -> Slice | None:
    return next((piece for piece in slices if any(fnmatchcase(name, w) for w in piece.members)), None)


def render(record: Record) -> Documents:
    """The documents of one record; ValueError if it is not of the shape that its renderer reads."""
    renderer = record.piece.renderer
    try:
        if isinstance(record.raw, WebRecord):
            yield from web_page(record.raw)
        elif renderer in MEMBERS:
            yield from MEMBERS[renderer](record.name, record.raw)
        elif renderer in GROUPS:
            yield from GROUPS[renderer][0]([loaded(raw) for raw in record.raw])
        else:
            yield from ROWS[renderer](loaded(record.raw))
    except (TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"it is not what {renderer!r} reads ({type(error).__name__}: {error})") from error


def loaded(row: Any) -> Any:
    """A row that may still be a line of JSON."""
    return orjson.loads(row) if isinstance(row, bytes) else row


def _records(piece: Slice, name: str, packed: io.BufferedIOBase, span: Span | None) -> Iterator[Record]:
    codec = None if name.endswith(ARCHIVES) else PACKED.get(name.rpartition(".")[2])
    file: Any = pa.CompressedInputStream(packed, codec) if codec else packed
    if piece.renderer in MEMBERS:
        yield Record(piece, name, _whole(name, file))
        return
    rows = _rows(name.rpartition(".")[0] if codec else name, file, span)
    # A range of row groups does not know the number of its first row.
    first = f"{name}@{span[0]}" if span and span[0] else name
    numbered = ((f"{first}:{number}", raw) for number, raw in enumerate(rows, 1))
    by = GROUPS[piece.renderer][1] if piece.renderer in GROUPS else None
    if by is None:
        yield from (Record(piece, place, raw) for place, raw in numbered)
    elif isinstance(by, int):
        while batch := list(islice(numbered, by)):
            yield Record(piece, batch[0][0], [raw for _, raw in batch])
    else:
        groups: dict[Any, list[Any]] = {}
        for row in (loaded(raw) for _, raw in numbered):
            groups.setdefault(row.get(by) if isinstance(row, dict) else None, []).append(row)
        yield from (Record(piece, f"{name}:{key}", group) for key, group in groups.items())


def _whole(name: str, file: Any) -> bytes:
    blocks, size = [], 0
    while block := file.read(_BLOCK):  # not at once: for that the library takes four times the memory
        blocks.append(block)
        size += len(block)
        _check_size(name, size)
    return b"".join(blocks)


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > MAX_MEMBER_BYTES:
        raise InputError(f"{name} holds more than {MAX_MEMBER_BYTES >> 20} MiB to be read at once. Split it.")


def _rows(name: str, file: Any, span: Span | None) -> Iterator[Any]:
    """Rows by the ending of the name; a line of JSON is left as bytes, for it may be broken."""
    base, _, ending = name.rpartition("/")[2].rpartition(".")
    if ending == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as read_file:
            groups = range(read_file.num_row_groups)[slice(*span or (None,))]
            for batch in read_file.iter_batches(64, row_groups=groups, use_threads=False):
                yield from batch.to_pylist()
    elif ending == "json":
        rows = orjson.loads(_whole(name, file))
        yield from rows if isinstance(rows, list) else [rows]
    elif ending in ("csv", "tsv", "txt") or base + ending in _HEADLESS:
        csv.field_size_limit(MAX_MEMBER_BYTES)
        lines = (line.decode("utf-8-sig", "replace") + "\n" for line in _lines(name, file))
        dialect = "excel" if ending == "csv" else "excel-tab"
        yield from csv.DictReader(lines, _HEADLESS.get(base + ending), dialect=dialect)
    elif ending in _MARKS:
        yield from (
            {"record": block.decode(errors="replace")}
            for block in _blocks(_lines(name, file), *_MARKS[ending])
        )
    else:
        yield from (line for line in _lines(name, file) if line.strip())


def _lines(name: str, file: Any) -> Iterator[bytes]:
    pieces, size = [], 0
    while block := file.read(_BLOCK):
        first, *others = block.split(b"\n")
        pieces.append(first)
        size += len(first)
        _check_size(name, size)
        if others:
            yield b"".join(pieces)
            yield from others[:-1]
            pieces, size = [others[-1]], len(others[-1])
    if any(pieces):
        yield b"".join(pieces)


def _blocks(lines: Iterator[bytes], start: bytes | None, end: bytes | None) -> Iterator[bytes]:
    block: list[bytes] = []
    for line in lines:
        if start is not None and block and line.startswith(start):
            yield b"\n".join((*block, b""))
            block = []
        block.append(line)
        if end is not None and line.rstrip() == end:
            yield b"\n".join((*block, b""))
            block = []
    if any(line.strip() for line in block):
        yield b"\n".join((*block, b""))
