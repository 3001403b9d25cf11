"""Sources of any format as records: members of archives, rows of files, pages of crawls. Nothing is rendered.

What a file is, its name says; whether it is read whole or row by row, the renderer of its slice says.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.corpus.archives import MAX_MEMBER_BYTES, members
from lmlab.corpus.registry import Slice
from lmlab.corpus.render import GROUPS, MEMBERS, ROWS, Documents
from lmlab.dataflow.files import row_groups
from lmlab.storage import Path

ARCHIVES = (".zip", ".whl", ".tgz", ".tar.gz", ".deb")
SPLIT_BYTES = 32 << 20
"""A larger zip or Parquet file is read by several tasks, so that it does not hold up one worker alone."""
_PACKED = {"gz": "gzip", "zst": "zstd", "dz": "gzip"}
_HEADLESS = {"CID-SMILES": ("cid", "smiles")}
# What a record of these starts with, or (if it comes last) ends with.
_STARTS = {"fasta": b">", "fa": b">", "pgn": b"[Event "}
_ENDS = {"dat": b"//", "sdf": b"$$$$"}
Span = tuple[int, int]


class Record(NamedTuple):
    """One thing to render."""

    piece: Slice
    name: str
    """Of the member, and the number of the row from 1."""
    raw: Any
    """Bytes of a member or a line, a row, or the rows of a group."""


def spans(path: Path) -> list[Span | None]:
    """The ranges of members or row groups that separate tasks read; [None] where a format has none."""
    if path.name.endswith((".zip", ".whl")) and path.size() > SPLIT_BYTES:
        with path.open() as file, zipfile.ZipFile(file) as archive:
            return list(_cut([member.compress_size for member in archive.infolist()]))
    if path.name.endswith(".parquet"):
        return list(_cut(row_groups(path))) or [None]
    return [None]


def _cut(sizes: Sequence[int]) -> Iterator[Span]:
    start, size = 0, 0
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= SPLIT_BYTES or end == len(sizes):
            yield start, end
            start, size = end, 0


def read(path: Path, slices: Sequence[Slice], span: Span | None = None) -> Iterator[Record]:
    """The records of a file that its slices ask for; InputError if it is cut off or is no such file."""
    last = "the start"
    try:
        for record in _read(path, slices, span):
            last = record.name
            yield record
    except (OSError, EOFError, pa.ArrowInvalid, csv.Error, orjson.JSONDecodeError) as error:
        raise InputError(
            f"{path} can't be read after {last} ({type(error).__name__}: {str(error)[:200]}). It may be cut "
            "off, or no such file as its name says. Fetch it again."
        ) from error


def _read(path: Path, slices: Sequence[Slice], span: Span | None) -> Iterator[Record]:
    if path.name.endswith(ARCHIVES):
        patterns = tuple(pattern for piece in slices for pattern in piece.members)
        for name, data in members(path, patterns, span):
            yield from _records(_piece(slices, name), name, io.BytesIO(data))
    else:
        with path.open() as file:
            yield from _records(_piece(slices, path.name), path.name, file, span)


def _piece(slices: Sequence[Slice], name: str) -> Slice:
    for piece in slices:
        if any(fnmatchcase(name, wanted) for wanted in piece.members):
            return piece
    raise InputError(f"{name} fits none of the patterns of its slices, so nobody says what it is. Add one.")


def render(record: Record) -> Documents:
    """The documents of one record."""
    renderer = record.piece.renderer
    if renderer in MEMBERS:
        return MEMBERS[renderer](record.name, record.raw)
    if renderer in GROUPS:
        return GROUPS[renderer][0]([_loaded(raw) for raw in record.raw])
    return ROWS[renderer](_loaded(record.raw))


def _loaded(raw: Any) -> Any:
    return orjson.loads(raw) if isinstance(raw, bytes) else raw


def _records(piece: Slice, name: str, file: io.BufferedIOBase, span: Span | None = None) -> Iterator[Record]:
    if piece.renderer in MEMBERS:
        yield Record(piece, name, _whole(name, file))
        return
    numbered = ((f"{name}:{number}", raw) for number, raw in enumerate(_rows(name, file, span), 1))
    if piece.renderer not in GROUPS:
        yield from (Record(piece, name, raw) for name, raw in numbered)
        return
    by = GROUPS[piece.renderer][1]
    if isinstance(by, int):
        while batch := list(islice(numbered, by)):
            yield Record(piece, batch[0][0], [raw for _, raw in batch])
        return
    groups: dict[Any, list[Any]] = {}
    for _, raw in numbered:
        row = _loaded(raw)
        groups.setdefault(row.get(by) if isinstance(row, dict) else None, []).append(row)
    yield from (Record(piece, f"{name}:{key}", rows) for key, rows in groups.items())


def _whole(name: str, file: io.BufferedIOBase) -> bytes:
    codec = _PACKED.get(name.rpartition(".")[2])
    stream: Any = pa.CompressedInputStream(file, codec) if codec else file
    data = stream.read(MAX_MEMBER_BYTES + 1)
    if len(data) > MAX_MEMBER_BYTES:
        raise InputError(f"{name} is larger than {MAX_MEMBER_BYTES >> 20} MiB and is read whole. Split it.")
    return data


def _rows(name: str, file: io.BufferedIOBase, span: Span | None) -> Iterator[Any]:
    """Rows by the ending of the name; a line of JSON is left as bytes, for it may be broken."""
    codec = _PACKED.get(name.rpartition(".")[2])
    stem = name.rpartition(".")[0] if codec else name
    stream: Any = pa.CompressedInputStream(file, codec) if codec else file
    base, _, ending = stem.rpartition("/")[2].rpartition(".")
    if ending == "parquet":
        yield from _of_parquet(stream, span)
    elif ending == "json":
        loaded = orjson.loads(_whole(name, stream))
        yield from loaded if isinstance(loaded, list) else [loaded]
    elif ending in ("csv", "tsv", "txt") or base + ending in _HEADLESS:
        csv.field_size_limit(MAX_MEMBER_BYTES)
        text = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")
        dialect = "excel" if ending == "csv" else "excel-tab"
        yield from csv.DictReader(text, _HEADLESS.get(base + ending), dialect=dialect)
    elif ending in _STARTS or ending in _ENDS:
        yield from _blocks(stream, _STARTS.get(ending), _ENDS.get(ending))
    else:
        yield from (line for line in io.BufferedReader(stream) if line.strip())


def _of_parquet(file: Any, span: Span | None) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as read:
        groups = range(read.num_row_groups)[slice(*span)] if span else None
        for batch in read.iter_batches(64, row_groups=groups, use_threads=False):
            yield from batch.to_pylist()


def _blocks(lines: Any, start: bytes | None, end: bytes | None) -> Iterator[dict[str, str]]:
    block: list[bytes] = []
    for line in io.BufferedReader(lines):
        if start is not None and block and line.startswith(start):
            yield {"record": b"".join(block).decode(errors="replace")}
            block = []
        block.append(line)
        if end is not None and line.rstrip() == end:
            yield {"record": b"".join(block).decode(errors="replace")}
            block = []
    if b"".join(block).strip():
        yield {"record": b"".join(block).decode(errors="replace")}
