"""Archives to documents: one task for each archive scatters what it renders, one for each part sorts it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa

from lmlab.core.config import Json, canonical, decode
from lmlab.core.errors import InputError
from lmlab.corpus.archives import members
from lmlab.corpus.registry import Slice
from lmlab.corpus.render import RENDERERS
from lmlab.corpus.schema import (
    DOCUMENTS,
    PART_BYTES,
    REJECTED,
    Stage,
    document_id,
    kind_of,
    part_name,
    part_of,
    sorted_by_id,
    text_sizes,
    write_stages,
)
from lmlab.dataflow.failures import record
from lmlab.dataflow.files import write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path, read_json

Say = Callable[[str, int, int], None]
UNPACKED = 3
"""Text is about three times its archive: sizes the parts before anything is read."""
ROUND_BYTES = 32 << 20
MAX_UNREAD = 0.1
"""A text of which more than this is null or could not be decoded is binary, or in another encoding."""


@dataclass(frozen=True)
class ArchiveTask:
    """One archive to render."""

    path: Path
    package: str
    license: str
    slices: tuple[Slice, ...]
    min_bytes: int
    parts: int
    scattered: Path


@dataclass(frozen=True)
class PartTask:
    """One part to gather from what the archives scattered."""

    scattered: tuple[Path, ...]
    index: int
    parts: int
    out: Path


def extract_all(raw: Path, out: Path, min_bytes: int, workers: Runner, say: Say) -> Stage:
    """Render the archives that raw/manifest.json lists into parts below `out`; what that dropped."""
    archives = _listed(raw)
    # A property of the input, not of the machine: the same archives give the same parts everywhere.
    parts = max(1, math.ceil(sum(entry["bytes"] for entry in archives) * UNPACKED / PART_BYTES))
    scattered = tuple(out / ".work" / f"scattered-{i:05d}.arrow" for i in range(len(archives)))
    workers.run(
        render_archive,
        [
            ArchiveTask(
                raw / "archives" / entry["file"],
                entry["package"],
                entry["license"],
                decode(tuple[Slice, ...], entry["slices"], entry["file"]),
                min_bytes,
                parts,
                target,
            )
            for entry, target in zip(archives, scattered, strict=True)
        ],
        name="render",
        progress=lambda done, total: say("rendering archives", done, total),
    )
    stage = Stage("extract")
    tasks = [PartTask(scattered, index, parts, out) for index in range(parts)]
    for counted in workers.run(
        write_part, tasks, name="sort", progress=lambda done, total: say("sorting", done, total)
    ):
        stage.merge(counted)
    (out / ".work").remove_tree()
    write_stages(out, [stage.row()])
    return stage


def _listed(raw: Path) -> list[dict[str, Any]]:
    manifest = read_json(raw / "manifest.json")
    archives = manifest.get("archives") if isinstance(manifest, dict) else None
    if not archives:
        raise InputError(
            f"{raw}/manifest.json lists no archives, so there is no text. Fetch the sources again."
        )
    return archives


def render_archive(task: ArchiveTask) -> None:
    """Scatter the documents of one archive by id."""
    scatter(task.scattered, _rounds(task), task.parts, REJECTED)


def _rounds(task: ArchiveTask) -> Iterator[tuple[pa.Table, np.ndarray]]:
    rows: list[dict[str, str]] = []
    size = 0
    for row in _documents(task):
        rows.append(row)
        size += len(row["text"])
        if size >= ROUND_BYTES:
            yield _round(rows, task.parts)
            rows, size = [], 0
    yield _round(rows, task.parts)


def _round(rows: list[dict[str, str]], parts: int) -> tuple[pa.Table, np.ndarray]:
    return pa.Table.from_pylist(rows, schema=REJECTED), part_of([row["id"] for row in rows], parts)


def _documents(task: ArchiveTask) -> Iterator[dict[str, str]]:
    patterns = tuple(pattern for piece in task.slices for pattern in piece.members)
    found = dict.fromkeys((piece.domain for piece in task.slices), 0)
    for index, (name, data) in enumerate(members(task.path, patterns)):
        piece = next(
            piece for piece in task.slices if any(fnmatchcase(name, wanted) for wanted in piece.members)
        )
        with record(index, name):
            for part, language, text in RENDERERS[piece.renderer](name, data):
                path = f"{name}#{part}" if part else name
                meta: dict[str, Json] = {
                    "domain": piece.domain,
                    "language": language or piece.language,
                    "license": piece.license or task.license,
                    "package": task.package,
                    "path": path,
                }
                yield {
                    "id": document_id(text),
                    "text": text,
                    "source_id": f"{task.package}/{path}",
                    "meta": canonical(meta),
                    "reason": _fault(text, task.min_bytes),
                }
                found[piece.domain] += 1
    for domain, count in found.items():
        if count == 0:
            raise InputError(
                f"{task.path} holds no member for the domain {domain!r}, so the recipe does not fit the "
                "archive. Correct the patterns of its slices."
            )


def _fault(text: str, min_bytes: int) -> str:
    """Why a rendered text is no document; empty if it is one."""
    if not text.strip():
        return "blank"
    unread = text.count("�") + text.count("\0")
    if unread > MAX_UNREAD * len(text):
        return f"not UTF-8 text: {unread} of {len(text)} characters are null or could not be decoded"
    size_bytes = len(text.encode())
    return f"too short: {size_bytes} bytes" if size_bytes < min_bytes else ""


def write_part(task: PartTask) -> Stage:
    """Write one sorted part of documents, and the rejected members that fall in it."""
    table = sorted_by_id(gather(task.scattered, task.index, task.parts, REJECTED))
    reasons = table.column("reason").to_pylist()
    kept = np.array([not reason for reason in reasons], bool)
    name = part_name(task.index, task.parts)
    write_parquet(task.out / name, table.filter(pa.array(kept)).select(DOCUMENTS.names).cast(DOCUMENTS))
    if not kept.all():
        write_parquet(task.out / "rejected" / "extract" / name, table.filter(pa.array(~kept)))
    stage = Stage("extract").take(text_sizes(table), kept)
    stage.dropped.update(kind_of(reason) for reason in reasons if reason)
    return stage
