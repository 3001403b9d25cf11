"""Paragraphs that stand somewhere else too, as spans to cut: all copies but the first in the smallest id.

Paragraphs are parted by blank lines. Their hashes are shuffled, so that equal ones meet; what is found goes
back to its part by a second shuffle. Memory is one bucket of hashes or one part, whatever the corpora hold.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

from lmlab.corpus.attributes import Parts, Say
from lmlab.corpus.schema import load_text, text_buffers
from lmlab.dataflow.files import read_parquet, write_parquet
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


def mark_paragraphs(
    corpora: Mapping[str, Path], out: Path, min_bytes: int, runner: Runner, say: Say
) -> dict[str, int]:
    """Write the `spans` of repeated paragraphs; how many documents and repeats there are, and their bytes."""
    parts, work = Parts(corpora), out / ".work"
    count = len(parts.paths)
    buckets = math.ceil(sum(path.size() for path in parts.paths) / BUCKET_BYTES)
    hashed = [work / f"hashed-{i:05d}.arrow" for i in range(count)]
    scattered = [work / f"repeats-{i:05d}.arrow" for i in range(buckets)]
    split = partial(split_part, min_bytes=min_bytes, buckets=buckets)
    tasks = list(zip(range(count), parts.paths, hashed, strict=True))
    runner.run(split, tasks, name="split", progress=partial(say, "hashing paragraphs"))
    find = partial(find_repeats, hashed=hashed, buckets=buckets, parts=count)
    runner.run(find, list(enumerate(scattered)), name="meet", progress=partial(say, "finding repeats"))
    write = partial(write_spans, repeats=scattered, parts=count)
    tasks = list(zip(range(count), parts.paths, parts.in_folder(out), strict=True))
    found = runner.run(write, tasks, name="spans", progress=partial(say, "writing spans"))
    work.remove_tree()
    repeats, size = (sum(values) for values in zip(*found, strict=True))
    return {"documents": int(parts.starts[-1]), "repeats": repeats, "repeated_bytes": size}


def split_part(task: tuple[int, Path, Path], min_bytes: int, buckets: int) -> None:
    """Scatter the hashes of the paragraphs of one part."""
    number, part, out = task
    table = load_text(part)
    data, offsets = text_buffers(table)
    hashes, places = [], []
    for row, (first, last) in enumerate(pairwise(offsets.tolist())):
        text = data[first:last].tobytes()
        gaps = [gap.span() for gap in _BLANK_LINES.finditer(text)]
        for (_, start), (end, after) in pairwise([(0, 0), *gaps, (len(text), len(text))]):
            if end - start >= min_bytes:
                hashes.append(xxhash.xxh3_128_digest(text[start:end]))
                places.append((row, start, after))
    row, start, end = np.array(places, np.int64).reshape(-1, 3).T
    ids = b"".join(bytes.fromhex(value) for value in table.column("id").to_pylist())
    halves = [
        np.frombuffer(joined, ">u8").reshape(-1, 2).astype(np.uint64) for joined in (b"".join(hashes), ids)
    ]
    columns = [*halves[0].T, *halves[1][row].T, np.full(len(row), number), row, start, end]
    found = pa.table([pa.array(column) for column in columns], schema=PARAGRAPHS)
    scatter(out, [(found, (columns[0] % np.uint64(buckets)).astype(int))], buckets, PARAGRAPHS)


def find_repeats(task: tuple[int, Path], hashed: Sequence[Path], buckets: int, parts: int) -> None:
    """Scatter all but the first, by id, of the equal paragraphs in one bucket to the parts they stand in."""
    bucket, out = task
    table = gather(hashed, bucket, buckets, PARAGRAPHS)
    columns = [table.column(name).to_numpy() for name in PARAGRAPHS.names[:-1]]
    order = np.lexsort(columns[::-1])
    high, low = columns[0][order], columns[1][order]
    is_repeat = np.r_[False, (high[1:] == high[:-1]) & (low[1:] == low[:-1])][: len(order)]
    repeats = table.take(pa.array(order[is_repeat]))
    scatter(out, [(repeats, repeats.column("part").to_numpy())], parts, PARAGRAPHS)


def write_spans(task: tuple[int, Path, Path], repeats: Sequence[Path], parts: int) -> tuple[int, int]:
    """Write the spans of one part, none for most documents; how many there are, and their bytes."""
    number, part, out = task
    found = gather(repeats, number, parts, PARAGRAPHS)
    row, start, end = (found.column(name).to_numpy() for name in ("row", "start", "end"))
    order = np.lexsort((start, row))
    ids = read_parquet(part, ["id"]).column("id")
    ends = np.searchsorted(row[order], np.arange(len(ids) + 1)).astype(np.int32)
    pairs = [pa.array(start[order]), pa.array(end[order])]
    spans = pa.StructArray.from_arrays(pairs, fields=list(SPANS.value_type))
    lists = pa.ListArray.from_arrays(pa.array(ends), spans, type=SPANS)
    write_parquet(out, pa.table({"id": ids, "spans": lists}))
    return len(order), int((end - start).sum())
