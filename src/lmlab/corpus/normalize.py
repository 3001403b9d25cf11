"""Raw documents to normalized, unique ones: whitespace cut, ids from the final text, languages told.

Equal texts have equal ids and so meet in the same part, where the first by source is kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.corpus.config import Fuzzy
from lmlab.corpus.fuzzy import band_keys
from lmlab.corpus.language import detect
from lmlab.corpus.schema import (
    DOCUMENTS,
    LANGUAGE,
    REJECTED,
    Stage,
    document_id,
    part_name,
    part_of,
    sorted_by_id,
    text_sizes,
)
from lmlab.dataflow.failures import record
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path

LONGEST_GAP = 128
"""Longer runs of whitespace are cut to this: they reach megabytes in the wild and teach nothing."""
_GAP = re.compile(rf"\s{{{LONGEST_GAP + 1},}}")

LABELLED = (
    REJECTED.append(pa.field("domain", pa.string(), nullable=False))
    .append(LANGUAGE.field("value"))
    .append(LANGUAGE.field("score"))
)
NORMALIZED = DOCUMENTS.append(LABELLED.field("domain"))


@dataclass(frozen=True)
class CleanTask:
    """One part of raw documents to clean and scatter."""

    part: Path
    parts: int
    scattered: Path


@dataclass(frozen=True)
class UniqueTask:
    """One part of normalized documents to gather and make unique."""

    scattered: tuple[Path, ...]
    index: int
    parts: int
    work: Path
    out: Path
    fuzzy: Fuzzy


@dataclass(frozen=True)
class Normalized:
    """What the owner must know of one normalized part, row by row."""

    stages: tuple[Stage, ...]
    ids: list[str]
    domains: list[str]
    sizes: np.ndarray
    """int64 UTF-8 bytes."""
    bands: np.ndarray
    """uint64 [rows, bands]; zeros where a text is too short to have any."""


def normalize(text: str) -> str:
    """`text` with every run of more than 128 whitespace characters cut to its first 128."""
    return _GAP.sub(lambda gap: gap[0][:LONGEST_GAP], text)


def clean_part(task: CleanTask) -> None:
    """Normalize and label the documents of one raw part and scatter them by their new ids."""
    table = read_parquet(task.part)
    if table.schema.names != DOCUMENTS.names or table.schema.types != DOCUMENTS.types:
        raise InputError(
            f"{task.part} has the columns {table.schema.names}, not those of documents: {DOCUMENTS.names}. "
            "Give documents that `extract` made, or write that schema."
        )
    scatter(task.scattered, _rounds(table, task.parts), task.parts, LABELLED)


def _rounds(table: pa.Table, parts: int) -> Iterator[tuple[pa.Table, np.ndarray]]:
    rows = []
    for index, row in enumerate(table.to_pylist()):
        with record(index, row["source_id"]):
            rows.append(_label(row))
    yield pa.Table.from_pylist(rows, schema=LABELLED), part_of([row["id"] for row in rows], parts)


def _label(row: dict[str, str]) -> dict[str, Any]:
    text = normalize(row["text"])
    domain = orjson.loads(row["meta"]).get("domain")
    if not isinstance(domain, str):
        raise InputError(f"{row['source_id']} has no domain in its meta {row['meta'][:80]!r}. Add one.")
    value, score = detect(text)
    return {
        "id": document_id(text),
        "text": text,
        "source_id": row["source_id"],
        "meta": row["meta"],
        "reason": "" if text.strip() else "blank",
        "domain": domain,
        "value": value,
        "score": score,
    }


def unique_part(task: UniqueTask) -> Normalized:
    """Write one sorted part without repeats, its languages and rejects; what the owner must know of it."""
    name = part_name(task.index, task.parts)
    table = sorted_by_id(gather(task.scattered, task.index, task.parts, LABELLED))
    sizes = text_sizes(table)
    ids = table.column("id").to_pylist()
    is_blank = np.array([bool(reason) for reason in table.column("reason").to_pylist()], bool)
    is_repeat = np.array([i > 0 and ids[i] == ids[i - 1] for i in range(len(ids))], bool) & ~is_blank
    kept = ~is_blank & ~is_repeat

    cleaned = Stage("normalize").take(sizes, ~is_blank)
    told = Stage("language").take(sizes[~is_blank])
    unique = Stage("exact").take(sizes[~is_blank], kept[~is_blank])
    cleaned.dropped.update({"blank": int(is_blank.sum())} if is_blank.any() else {})
    unique.dropped.update({"exact duplicate": int(is_repeat.sum())} if is_repeat.any() else {})

    if is_blank.any():
        rejected = table.filter(pa.array(is_blank)).select(REJECTED.names)
        write_parquet(task.out / "rejected" / "normalize" / name, rejected)
    if is_repeat.any():
        write_parquet(task.out / "rejected" / "exact" / name, _repeats(table, is_repeat))
    table = table.filter(pa.array(kept)).combine_chunks()
    write_parquet(task.out / "attributes" / "language" / name, table.select(LANGUAGE.names))
    write_parquet(task.work / name, table.select(NORMALIZED.names))
    return Normalized(
        (cleaned, told, unique),
        table.column("id").to_pylist(),
        table.column("domain").to_pylist(),
        sizes[kept],
        band_keys(table, task.fuzzy),
    )


def _repeats(table: pa.Table, is_repeat: np.ndarray) -> pa.Table:
    sources = table.column("source_id").to_pylist()
    reasons, first = [], ""
    for source, repeats in zip(sources, is_repeat.tolist(), strict=True):
        first = first if repeats else source
        reasons.append(f"exact duplicate: of {first}")
    column = pa.array(reasons, pa.string())
    marked = table.set_column(REJECTED.get_field_index("reason"), REJECTED.field("reason"), column)
    return marked.filter(pa.array(is_repeat)).select(REJECTED.names)
