"""Where records come from: files found by a pattern, lists, or what mappers scattered, cut into shards.

Files are listed and sorted once, when the plan is made, so that shard numbers are the same in every run.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa

from lmlab.core.errors import ConfigError, InputError
from lmlab.dataflow.files import JSONL, Bad, read_batches, read_jsonl, row_groups
from lmlab.dataflow.shuffle import Run
from lmlab.storage import Path
from lmlab.storage.globbing import matching

Format = Literal["jsonl", "parquet"]
SUFFIX = r"\.(parquet|(jsonl|ndjson|json)(\.zst|\.gz)?)$"


@dataclass(frozen=True)
class FilePiece:
    """A file, or some row groups of a Parquet file."""

    path: Path
    size_bytes: int
    etag: str
    format: Format
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ListPiece:
    """Records given by hand."""

    records: tuple[Any, ...]


@dataclass(frozen=True)
class RunPiece:
    """What all mappers scattered to one target."""

    runs: tuple[Run, ...]
    spill: Path


Piece = FilePiece | ListPiece | RunPiece
Shard = tuple[Piece, ...]


@dataclass(frozen=True)
class Reading:
    """What is wanted of files."""

    columns: tuple[str, ...] | None = None
    where: Any = None
    """An expression of pyarrow."""
    path_column: str | None = None
    """A column added with the path of the file."""


def list_shards(
    pattern: str | Path, file_format: Format | None, shard_bytes: int | None, allow_empty: bool
) -> tuple[Shard, ...]:
    """A shard for each file that fits, in order; Parquet above `shard_bytes` is cut between row groups."""
    folder, rest = _split(str(pattern))
    if not rest and folder.is_dir():
        raise ConfigError(f"{folder} is a folder. Say which of its files: {folder}/*.jsonl.zst")
    found = matching(folder, rest) if rest else [(folder, folder.stat())]
    pieces = [
        FilePiece(path, stat.size_bytes, stat.etag, file_format or _format_of(path))
        for path, stat in found
        if stat is not None
    ]
    if not pieces and not allow_empty:
        raise InputError(
            f"No file fits {pattern}, so there is nothing to read. Correct it, or allow_empty=True."
        )
    return tuple((cut,) for piece in pieces for cut in _cuts(piece, shard_bytes))


def _split(pattern: str) -> tuple[Path, str]:
    """The folder before the first special character, and the rest."""
    special = re.search(r"[*?\[{]", pattern)
    if not special:
        return Path(pattern), ""
    folder, _, _ = pattern[: special.start()].rpartition("/")
    return Path(folder or ("/" if pattern.startswith("/") else ".")), pattern[len(folder) :].lstrip("/")


def _format_of(path: Path) -> Format:
    if path.name.endswith(JSONL):
        return "jsonl"
    if path.name.endswith(".parquet"):
        return "parquet"
    raise ConfigError(f"{path}: the name does not say the format. Give file_format='jsonl' or 'parquet'.")


def _cuts(piece: FilePiece, shard_bytes: int | None) -> Iterator[FilePiece]:
    if shard_bytes is None or piece.format != "parquet" or piece.size_bytes <= shard_bytes:
        yield piece
        return
    sizes = row_groups(piece.path)
    packed = piece.size_bytes / max(1, sum(sizes))
    groups: list[int] = []
    for number, size in enumerate(sizes):
        if groups and (sum(sizes[group] for group in groups) + size) * packed > shard_bytes:
            yield replace(piece, groups=tuple(groups))
            groups = []
        groups.append(number)
    yield replace(piece, groups=tuple(groups))


def regroup(shards: Sequence[Shard], count: int) -> tuple[Shard, ...]:
    """The same pieces in order, in `count` shards."""
    pieces = [piece for shard in shards for piece in shard]
    ends = [len(pieces) * i // count for i in range(count + 1)]
    return tuple(tuple(pieces[start:end]) for start, end in pairwise(ends))


def read_rows(piece: FilePiece, reading: Reading, bad: Bad | None) -> Iterator[Any]:
    """The records of a JSON-lines file."""
    for row in read_jsonl(piece.path, bad):
        if reading.columns is not None:
            row = {name: row[name] for name in reading.columns if name in row}  # noqa: PLW2901 - a projection
        if reading.path_column is not None:
            row[reading.path_column] = str(piece.path)
        yield row


def read_tables(piece: FilePiece, reading: Reading) -> Iterator[pa.Table]:
    """A Parquet file in tables of about 1 MiB."""
    for batch in read_batches(piece.path, reading.columns, reading.where, piece.groups):
        table = pa.Table.from_batches([batch])
        if reading.path_column is not None:
            table = table.append_column(reading.path_column, [[str(piece.path)] * batch.num_rows])
        yield table
