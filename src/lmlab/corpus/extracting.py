"""Sources to documents: tasks scatter what they render, and one for each part sorts it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lmlab.core.config import Json, canonical, decode
from lmlab.core.errors import InputError
from lmlab.corpus.archives import Span
from lmlab.corpus.reading import Record, by_size, read, render, spans
from lmlab.corpus.registry import Slice
from lmlab.corpus.render import Rendered
from lmlab.corpus.schema import (
    DOCUMENTS,
    PART_BYTES,
    REJECTED,
    Stage,
    document_id,
    kind_of,
    part_name,
    part_of,
    parts_of,
    sorted_by_id,
    text_sizes,
    write_stages,
)
from lmlab.dataflow.counters import count
from lmlab.dataflow.failures import RecordFailed, record
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path, read_json

Say = Callable[[str, int, int], None]
UNPACKED = 3
"""Text is about three times its archive: sizes the parts before anything is read."""
LARGEST_PART_BYTES = 256 << 20
ROUND_BYTES = 32 << 20
QUARANTINED_BYTES = 1 << 20
"""Of a record that can't be rendered, no more than this is kept."""
MAX_UNREAD = 0.1
"""A text of which more than this is null or could not be decoded is binary, or in another encoding."""


@dataclass(frozen=True)
class SourceTask:
    """One source to render, or a range of its members or row groups."""

    path: Path
    name: str
    """Below the place that it comes from."""
    span: Span | None
    package: str
    license: str
    slices: tuple[Slice, ...]
    min_bytes: int
    is_quarantine: bool
    parts: int
    scattered: Path


@dataclass(frozen=True)
class PartTask:
    """One part to gather from what the archives scattered."""

    scattered: tuple[Path, ...]
    index: int
    parts: int
    out: Path


def extract_all(
    raw: Path, out: Path, min_bytes: int, runner: Runner, say: Say, *, is_quarantine: bool = False
) -> Stage:
    """Render the sources that raw/manifest.json lists into parts below `out`; what that dropped.

    A record that its renderer can't read is an error that names it; with `is_quarantine` it is rejected
    with the error as its reason.
    """
    entries = _listed(raw)
    # A property of the input, not of the machine: the same sources give the same parts everywhere.
    parts = part_count(sum(entry["bytes"] for entry in entries) * UNPACKED)
    tasks: list[SourceTask] = []
    for entry in entries:
        path, package = raw / "archives" / entry["file"], entry["package"]
        slices = decode(tuple[Slice, ...], entry["slices"], entry["file"])
        about = package, entry["license"], slices, min_bytes, is_quarantine, parts
        for span in spans(path):
            target = out / ".work" / f"scattered-{len(tasks):05d}.arrow"
            name = entry["file"].removeprefix(f"{package}/")
            tasks.append(SourceTask(path, name, span, *about, target))
    found = runner.run(render_source, tasks, name="render", progress=partial(say, "rendering sources"))
    _check_found(tasks, found)
    return write_parts(tuple(task.scattered for task in tasks), parts, out, runner, say)


def part_count(size_bytes: int) -> int:
    """Parts of about 16 MiB up to 64 of them; of more text the parts grow, up to 256 MiB.

    Each source is scattered to every part, so a hundred thousand of them would be mostly headers.

    >>> part_count(1 << 20), part_count(1 << 30), part_count(10 << 30), part_count(1 << 40)
    (1, 64, 64, 4096)
    """
    return max(
        1, min(math.ceil(size_bytes / PART_BYTES), max(64, math.ceil(size_bytes / LARGEST_PART_BYTES)))
    )


def write_parts(scattered: tuple[Path, ...], parts: int, out: Path, runner: Runner, say: Say) -> Stage:
    """Sort what tasks scattered into the parts of `out`, and say what was dropped."""
    stage = Stage("extract")
    tasks = [PartTask(scattered, index, parts, out) for index in range(parts)]
    for counted in runner.run(write_part, tasks, name="sort", progress=partial(say, "sorting")):
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


def _check_found(tasks: list[SourceTask], found: list[Counter[str]]) -> None:
    """Every domain of a package must have come out of at least one of its files."""
    of_package: dict[str, Counter[str]] = defaultdict(Counter)
    for task, counted in zip(tasks, found, strict=True):
        of_package[task.package].update(counted)
    for task in tasks:
        for domain in (piece.domain for piece in task.slices):
            if not of_package[task.package][domain]:
                raise InputError(
                    f"{task.path} holds no member for the domain {domain!r}, so the recipe does not fit "
                    "the archive. Correct the patterns of its slices."
                )


def render_source(task: SourceTask) -> Counter[str]:
    """Scatter the documents of one source by id; how many there are in each domain."""
    found: Counter[str] = Counter()
    rows = documents_of(task, found, read(task.path, task.slices, task.span, task.name))
    scatter(task.scattered, rounds(rows, task.parts), task.parts, REJECTED)
    return found


def rounds(rows: Iterable[dict[str, str]], parts: int) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Rows of `REJECTED` as tables that fit in memory, and the part of every row."""
    for batch in by_size(rows, lambda row: len(row["text"]), ROUND_BYTES):
        yield pa.Table.from_pylist(batch, schema=REJECTED), part_of([row["id"] for row in batch], parts)


def documents_of(
    task: SourceTask, found: Counter[str], records: Iterable[Record]
) -> Iterator[dict[str, str]]:
    """Rows of `REJECTED`, those with a reason being no documents; `found` counts records by domain."""
    for index, one in enumerate(records):
        try:
            with record(index, one.name):
                for rendered in render(one):
                    yield _row(task, one, rendered)
                    found[one.piece.domain] += 1
        except RecordFailed as error:
            if not task.is_quarantine:
                raise
            count("quarantined")
            found[one.piece.domain] += 1
            yield _row(task, one, Rendered("", None, _shown(one.raw), reason=f"unreadable: {error}"))


def _row(task: SourceTask, one: Record, rendered: Rendered) -> dict[str, str]:
    path = f"{one.name}#{rendered.part}" if rendered.part else one.name
    meta: dict[str, Json] = {
        "license": one.piece.license or task.license,
        **rendered.meta,
        "domain": one.piece.domain,
        "language": rendered.language or one.piece.language,
        "package": task.package,
        "path": path,
    }
    return {
        "id": document_id(rendered.text),
        "text": rendered.text,
        "source_id": f"{task.package}/{path}",
        "meta": canonical(meta),
        "reason": rendered.reason or fault_of(rendered.text, task.min_bytes),
    }


def _shown(raw: Any) -> str:
    data = raw if isinstance(raw, bytes) else orjson.dumps(raw, default=str, option=orjson.OPT_NON_STR_KEYS)
    return data[:QUARANTINED_BYTES].decode(errors="replace")


def fault_of(text: str, min_bytes: int) -> str:
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


def spread(documents: Path, out: Path, field: str, runner: Runner, say: Say) -> dict[str, Stage]:
    """Write one folder of documents below `out` for each value of a meta field; what went into each.

    Every folder has all the parts, some of them empty, so that attributes can stand beside each.
    """
    names = [path.name for path in parts_of(documents)]
    tasks = [(documents, out, field, name) for name in names]
    stages: dict[str, Stage] = {}
    for counted in runner.run(spread_part, tasks, name="spread", progress=partial(say, "spreading")):
        for value, stage in counted.items():
            stages.setdefault(value, Stage("spread")).merge(stage)
    for value, stage in stages.items():
        for name in names:
            if not (out / value / name).exists():
                write_parquet(out / value / name, DOCUMENTS.empty_table())
        write_stages(out / value, [stage.row()])
    return stages


def spread_part(task: tuple[Path, Path, str, str]) -> dict[str, Stage]:
    """Spread one part of documents, given with the folder to write to, the field, and the part's name."""
    documents, out, field, name = task
    table = read_parquet(documents / name)
    values = np.array([str(orjson.loads(meta).get(field)) for meta in table.column("meta").to_pylist()])
    stages = {}
    for value in map(str, np.unique(values)):
        if not re.fullmatch(r"\w[\w.@-]*", value):
            raise InputError(
                f"{documents / name} has {field}={value!r}, which can't name a folder. "
                "Choose another field, or correct it in the renderer."
            )
        own = table.filter(pa.array(values == value))
        write_parquet(out / value / name, own)
        stages[value] = Stage("spread").take(text_sizes(own))
    return stages
