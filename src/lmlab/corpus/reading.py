"""Sources of any format as records: members of archives, rows of files. Nothing is rendered here.

What a file is, its name says; whether it is read whole or row by row, the renderer of its slice says.
"""

import csv
import io
import zipfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import orjson
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.corpus.archives import MAX_MEMBER_BYTES, Span, members
from lmlab.corpus.registry import Slice
from lmlab.corpus.render import GROUPS, MEMBERS, ROWS, Documents
from lmlab.corpus.render.files import web_page
from lmlab.corpus.warc import WebRecord, records
from lmlab.dataflow.files import lines_of, row_groups
from lmlab.storage import Path

ARCHIVES = (".zip", ".whl", ".tgz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".deb")
CRAWLS = (".warc", ".warc.gz", ".warc.zst")
PACKED = {"gz": "gzip", "dz": "gzip", "zst": "zstd", "bz2": "bz2"}
SPLIT_BYTES = 32 << 20
"""A larger zip or Parquet file is read by several tasks, so that it does not hold up one worker alone."""
_BLOCK = 1 << 20
_HEADLESS = {"CID-SMILES": ("cid", "smiles")}
# How the first line of a record of these begins, or what its last one is.
_MARKS = {"fasta": (b">", None), "fa": (b">", None), "pgn": (b"[Event ", None), "dat": (None, b"//")}
Item = TypeVar("Item")


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
    if not path.name.endswith((".zip", ".whl", ".parquet")) or path.size() <= SPLIT_BYTES:
        return [None]
    with suppress(zipfile.BadZipFile, InputError):  # reading it will say what is wrong
        if path.name.endswith(".parquet"):
            sizes = row_groups(path)
        else:
            with path.open() as file, zipfile.ZipFile(file) as archive:
                sizes = [member.compress_size for member in archive.infolist()]
    runs = by_size(enumerate(sizes), lambda numbered: numbered[1], SPLIT_BYTES)
    return [(run[0][0], run[-1][0] + 1) for run in runs] or [None]


def by_size(items: Iterable[Item], size_of: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Runs of items that together reach `limit`, the last of them what is left."""
    run: list[Item] = []
    size = 0
    for item in items:
        run.append(item)
        size += size_of(item)
        if size >= limit:
            yield run
            run, size = [], 0
    if run:
        yield run


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
    return orjson.loads(row.removeprefix(BOM_UTF8)) if isinstance(row, bytes) else row


def _records(piece: Slice, name: str, packed: io.BufferedIOBase, span: Span | None) -> Iterator[Record]:
    codec = None if name.endswith(ARCHIVES) else PACKED.get(name.rpartition(".")[2])
    file: Any = pa.CompressedInputStream(packed, codec) if codec else packed
    if piece.renderer in MEMBERS:
        # Not at once: for that the library takes four times the memory.
        yield Record(piece, name, _whole(name, iter(lambda: file.read(_BLOCK), b"")))
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


def _whole(name: str, blocks: Iterable[bytes]) -> bytes:
    kept, size = [], 0
    for block in blocks:
        kept.append(block)
        size += len(block)
        if size > MAX_MEMBER_BYTES:
            limit = format_bytes(MAX_MEMBER_BYTES)
            raise InputError(f"{name} holds more than {limit} to be read at once. Split it.")
    return b"".join(kept)


def _rows(name: str, file: Any, span: Span | None) -> Iterator[Any]:
    """Rows by the ending of the name; a line of JSON is left as bytes, for it may be broken."""
    base, _, ending = name.rpartition("/")[2].rpartition(".")
    lines = lines_of(file, MAX_MEMBER_BYTES)
    filled = (line for line in lines if line.strip())
    if ending == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as read_file:
            groups = range(read_file.num_row_groups)[slice(*span or (None,))]
            for batch in read_file.iter_batches(64, row_groups=groups, use_threads=False):
                yield from batch.to_pylist()
    elif ending == "json":
        yield from _json(name, filled)
    elif ending in ("csv", "tsv", "txt") or base + ending in _HEADLESS:
        csv.field_size_limit(MAX_MEMBER_BYTES)
        decoded = (line.decode("utf-8-sig", "replace") + "\n" for line in lines)
        dialect = "excel" if ending == "csv" else "excel-tab"
        yield from csv.DictReader(decoded, _HEADLESS.get(base + ending), dialect=dialect)
    elif ending in _MARKS:
        yield from _blocks(lines, *_MARKS[ending])
    else:
        yield from filled


def _json(name: str, lines: Iterator[bytes]) -> Iterator[Any]:
    """The items of a list, one value that fills the file, or, as in Common Pile, a value on each line."""
    first = next(lines, b"")
    try:
        value = loaded(first)
    except orjson.JSONDecodeError:
        value = loaded(_whole(name, chain((first,), lines)))
    yield from value if isinstance(value, list) else [value]
    yield from lines


def _blocks(lines: Iterator[bytes], first: bytes | None, last: bytes | None) -> Iterator[dict[str, str]]:
    block: list[bytes] = []
    for line in lines:
        if block and (line.startswith(first) if first else block[-1].rstrip() == last):
            yield _joined(block)
            block = []
        block.append(line)
    if any(line.strip() for line in block):
        yield _joined(block)


def _joined(block: list[bytes]) -> dict[str, str]:
    return {"record": b"\n".join((*block, b"")).decode(errors="replace")}
