"""The one schema of documents, how they are named and split into parts, and what a stage says it did."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from lmlab.core.errors import InputError
from lmlab.dataflow.files import JSONL, read_parquet, write_parquet
from lmlab.storage import Path, read_json, write_json

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
REJECTED = DOCUMENTS.append(pa.field("reason", pa.string(), nullable=False))
Row = dict[str, Any]
_PART = re.compile(r"part-\d{5}-of-\d{5}\.parquet")  # Spark and pyarrow name theirs part-0…, too
PART_BYTES = 16 << 20
"""Text aimed at in one part: small enough that two workers share even a quick-start corpus evenly."""


def document_id(text: str) -> str:
    """32 hex digits of the xxh3-128 of the UTF-8 text.

    >>> document_id("")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(text.encode())


def part_of(ids: Sequence[str], parts: int) -> np.ndarray:
    """The part each id belongs to: ids are uniform, so equal ranges of them are equal shares."""
    return np.array([int(value[:8], 16) * parts >> 32 for value in ids], np.int64)


def part_name(index: int, total: int) -> str:
    """File name of part `index` of `total`.

    >>> part_name(3, 7)
    'part-00003-of-00007.parquet'
    """
    return f"part-{index:05d}-of-{total:05d}.parquet"


def parts_of(folder: Path) -> list[Path]:
    """The parts in a folder of documents, in order; InputError if there is none or one is missing."""
    found = [path for path in folder.list() if _PART.fullmatch(path.name)]
    total = int(found[0].name[len("part-00000-of-") : -len(".parquet")]) if found else 0
    if total == 0 or [path.name for path in found] != [part_name(i, total) for i in range(total)]:
        raise InputError(
            f"{folder} holds {len(found)} of {total or 'no'} document parts, so the corpus is incomplete. "
            "Build it again."
        )
    return found


def files_of(folder: Path) -> list[Path]:
    """The parts in a folder of documents; in another one, all files of rows, in order."""
    if any(_PART.fullmatch(path.name) for path in folder.list()):
        return parts_of(folder)
    files = [path for path in folder.walk() if path.name.endswith((".parquet", *JSONL))]
    if not files:
        raise InputError(
            f"{folder} holds no Parquet and no JSON lines, so there is no text. Give a folder of them."
        )
    return files


def sorted_by_id(table: pa.Table) -> pa.Table:
    """Rows by id, and those of equal text by where they come from."""
    return table.sort_by([("id", "ascending"), ("source_id", "ascending")]).combine_chunks()


def text_sizes(table: pa.Table) -> np.ndarray:
    """UTF-8 bytes of every text."""
    return np.diff(text_buffers(table)[1])


def text_buffers(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The texts as Arrow holds them, without a copy: all bytes (uint8), and rows + 1 offsets (int64)."""
    if table.num_rows == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    column = table.column("text").cast(pa.large_string()).combine_chunks()
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), ends


@dataclass
class Stage:
    """What one stage took in, let through and dropped, and why."""

    stage: str
    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    edited: int = 0
    """Documents whose text was changed."""
    dropped: Counter[str] = field(default_factory=Counter)

    def take(self, sizes: np.ndarray, kept: np.ndarray | None = None) -> "Stage":
        """Count documents of these sizes, of which the `kept` (default: all) go on."""
        out = sizes if kept is None else sizes[kept]
        self.documents_in += len(sizes)
        self.documents_out += len(out)
        self.bytes_in += int(sizes.sum())
        self.bytes_out += int(out.sum())
        return self

    def merge(self, other: "Stage") -> None:
        """Add the counts of another part of the same stage."""
        for name in ("documents_in", "documents_out", "bytes_in", "bytes_out", "edited"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped += other.dropped

    def row(self) -> Row:
        """As it stands in stages.json."""
        return {**vars(self), "dropped": dict(sorted(self.dropped.items()))}


def merged(parts: Sequence[Sequence[Stage]]) -> list[Stage]:
    """The stages of a whole corpus from those of its parts, which all have the same ones."""
    stages = [Stage(stage.stage) for stage in parts[0]]
    for part in parts:
        for stage, counted in zip(stages, part, strict=True):
            stage.merge(counted)
    return stages


def table_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Rows of values in the order of `schema`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def write_rejected(file: Path, table: pa.Table, reasons: Sequence[str | None]) -> None:
    """Write the documents that there is a reason against, with it; no file if there is none."""
    column = pa.array(reasons, pa.string())
    if column.null_count < len(column):
        marked = table.select(DOCUMENTS.names).append_column(REJECTED.field("reason"), column)
        write_parquet(file, marked.filter(column.is_valid()))


def load_text(path: Path) -> pa.Table:
    """Ids and texts of one part."""
    return read_parquet(path, ["id", "text"])


def write_stages(folder: Path, stages: Sequence[Row], domains: Sequence[Row] = ()) -> None:
    """Write stages.json: a row for each stage, and what every domain ended with."""
    write_json(folder / "stages.json", {"stages": list(stages), "domains": list(domains)})


def earlier_stages(folder: Path) -> list[Row]:
    """The stages that made the documents in `folder`; none if nothing says."""
    file = folder / "stages.json"
    return read_json(file)["stages"] if file.exists() else []


def kind_of(reason: str) -> str:
    """A reason is "kind" or "kind: detail"; counts go by kind.

    >>> kind_of("near duplicate: 0.93 of it is in 00ff")
    'near duplicate'
    """
    return reason.partition(":")[0]
