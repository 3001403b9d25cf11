"""Paragraphs that stand in another document too, as spans to cut: every copy but the one in the smallest id.

Paragraphs are parted by blank lines. Their hashes are shuffled, so that equal ones meet; what is found goes
back to its part by a second shuffle. Memory is one bucket of hashes or one part, whatever the corpora hold.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

from lmlab.corpus.attributes import Parts, Say
from lmlab.corpus.schema import load_text, text_buffers
from lmlab.dataflow.files import write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path

BUCKET_BYTES = 1 << 30
"""Compressed documents whose paragraphs make one bucket."""
_BLANK_LINES = re.compile(rb"\n\s*\n\s*")
PARAGRAPHS = pa.schema(
    [(name, pa.uint64()) for name in ("high", "low", "id_high", "id_low")]
    + [(name, pa.int64()) for name in ("part", "row", "start", "end")]
)
"""Hash of the paragraph, id of its document, and where it stands, with the gap behind it."""
SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64())]))


@dataclass(frozen=True)
class SplitTask:
    """One part whose paragraphs are hashed."""

    part: Path
    number: int
    min_bytes: int
    buckets: int
    scattered: Path


@dataclass(frozen=True)
class MeetTask:
    """One bucket of hashes, whose repeats are scattered to the parts they stand in."""

    scattered: tuple[Path, ...]
    bucket: int
    buckets: int
    parts: int
    repeats: Path


@dataclass(frozen=True)
class SpansTask:
    """One part, and where its repeats are gathered from."""

    part: Path
    number: int
    parts: int
    repeats: tuple[Path, ...]
    out: Path


def mark_paragraphs(
    corpora: Mapping[str, Path], out: Path, min_bytes: int, runner: Runner, say: Say
) -> tuple[int, int]:
    """Write the `spans` of repeated paragraphs; how many there are, and their bytes."""
    parts, work = Parts(corpora), out / ".work"
    buckets = math.ceil(sum(path.size() for path in parts.paths) / BUCKET_BYTES)
    count = len(parts.paths)
    scattered = tuple(work / f"paragraphs-{i:05d}.arrow" for i in range(count))
    repeats = tuple(work / f"repeats-{i:05d}.arrow" for i in range(buckets))
    splits = [
        SplitTask(part, i, min_bytes, buckets, target)
        for i, (part, target) in enumerate(zip(parts.paths, scattered, strict=True))
    ]
    runner.run(split_part, splits, name="split", progress=lambda d, n: say("hashing paragraphs", d, n))
    meets = [MeetTask(scattered, i, buckets, count, target) for i, target in enumerate(repeats)]
    runner.run(meet, meets, name="meet")
    targets = parts.in_folder(out)
    spans = [SpansTask(path, i, count, repeats, targets[i]) for i, path in enumerate(parts.paths)]
    found = runner.run(write_spans, spans, name="spans", progress=lambda d, n: say("writing spans", d, n))
    work.remove_tree()
    return sum(number for number, _ in found), sum(size for _, size in found)


def split_part(task: SplitTask) -> None:
    """Scatter the hashes of the paragraphs of one part."""
    scatter(task.scattered, _paragraphs(task), task.buckets, PARAGRAPHS)


def _paragraphs(task: SplitTask) -> Iterator[tuple[pa.Table, np.ndarray]]:
    table = load_text(task.part)
    data, offsets = text_buffers(table)
    hashes, places = [], []
    for row, (first, last) in enumerate(pairwise(offsets.tolist())):
        text = data[first:last].tobytes()
        gaps = [(gap.start(), gap.end()) for gap in _BLANK_LINES.finditer(text)]
        starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)]
        for start, end, after in zip(starts, ends, [*starts[1:], len(text)], strict=True):
            if end - start >= task.min_bytes:
                hashes.append(xxhash.xxh3_128_digest(text[start:end]))
                places.append((row, start, after))
    halves = np.frombuffer(b"".join(hashes), ">u8").reshape(-1, 2).astype(np.uint64)
    row, start, end = np.array(places, np.int64).reshape(-1, 3).T
    own = b"".join(bytes.fromhex(value) for value in table.column("id").to_pylist())
    ids = np.frombuffer(own, ">u8").reshape(-1, 2).astype(np.uint64)[row]
    columns = [*halves.T, *ids.T, np.full(len(row), task.number), row, start, end]
    yield (
        pa.table([pa.array(c) for c in columns], schema=PARAGRAPHS),
        (halves[:, 0] % task.buckets).astype(int),
    )


def meet(task: MeetTask) -> None:
    """Scatter all but the first, by id, of the equal paragraphs in one bucket."""
    table = gather(task.scattered, task.bucket, task.buckets, PARAGRAPHS)
    columns = [table.column(name).to_numpy() for name in PARAGRAPHS.names[:-1]]
    order = np.lexsort(columns[::-1])
    high, low = columns[0][order], columns[1][order]
    is_repeat = np.r_[False, (high[1:] == high[:-1]) & (low[1:] == low[:-1])][: len(order)]
    repeats = table.take(pa.array(order[is_repeat]))
    scatter(task.repeats, [(repeats, repeats.column("part").to_numpy())], task.parts, PARAGRAPHS)


def write_spans(task: SpansTask) -> tuple[int, int]:
    """Write the spans of one part, none for most documents; how many there are, and their bytes."""
    found = gather(task.repeats, task.number, task.parts, PARAGRAPHS)
    row, start, end = (found.column(name).to_numpy() for name in ("row", "start", "end"))
    order = np.lexsort((start, row))
    ids = load_text(task.part).column("id")
    ends = np.searchsorted(row[order], np.arange(len(ids) + 1)).astype(np.int32)
    spans = pa.StructArray.from_arrays(
        [pa.array(start[order]), pa.array(end[order])], fields=list(SPANS.value_type)
    )
    lists = pa.ListArray.from_arrays(pa.array(ends), spans, type=SPANS)
    write_parquet(task.out, pa.table({"id": ids, "spans": lists}))
    return len(order), int((end - start).sum())
