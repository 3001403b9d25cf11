"""Rows of any columns to normalized documents: whitespace cut, ids from the final text, equal texts once.

Rows are shuffled by id, so equal texts meet in one part, where the first by source is kept. All later stages
keep these parts, their names and their order. Texts stay in Arrow: only those that change become strings.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from lmlab.core.errors import InputError
from lmlab.corpus import kernels
from lmlab.corpus.attributes import Say
from lmlab.corpus.config import Normalization
from lmlab.corpus.schema import (
    DOCUMENTS,
    Stage,
    files_of,
    merged,
    part_name,
    part_of,
    sorted_by_id,
    table_of,
    text_buffers,
    text_sizes,
    write_rejected,
)
from lmlab.dataflow.files import read_batches, read_jsonl, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path

LONGEST_GAP = 128
"""Longer runs of whitespace are cut to this: they reach megabytes in the wild and teach nothing."""
_GAP = re.compile(rf"\s{{{LONGEST_GAP + 1},}}")
PACKED = 4
"""Text is about four times its compressed file: sizes the parts by what is known before reading."""
ROUND_BYTES = 64 << 20
"""Documents that are cleaned at a time."""
_ROWS = 100


def normalize_all(
    folders: Sequence[Path], out: Path, rejected: Path, settings: Normalization, runner: Runner, say: Say
) -> list[Stage]:
    """Write the rows of all files in `folders` as parts of documents in `out`; the stages, which add up.

    Blank and repeated documents go below `rejected`, with the reason. InputError for folders without text.
    """
    named = [(file, file.relative_to(folder)) for folder in folders for file in files_of(folder)]
    size = sum(file.size() * (1 if name.endswith((".jsonl", ".ndjson")) else PACKED) for file, name in named)
    count = max(1, math.ceil(size / settings.part_bytes))
    scattered = tuple(out / ".work" / f"scattered-{i:05d}.arrow" for i in range(len(named)))
    clean = partial(clean_file, bare=settings.bare, parts=count)
    tasks = [(*file, target) for file, target in zip(named, scattered, strict=True)]
    cuts = runner.run(clean, tasks, name="normalize", progress=partial(say, "normalizing"))
    unique = partial(
        unique_part, scattered=scattered, parts=count, out=out, rejected=rejected, exact=settings.exact
    )
    parts = runner.run(unique, range(count), name="exact", progress=partial(say, "sorting"))
    (out / ".work").remove_tree()
    stages = merged(parts)
    stages[0].edited = sum(count for count, _ in cuts)
    stages[0].bytes_in += sum(size for _, size in cuts)
    if stages[-1].documents_out == 0:
        read = stages[0].documents_in
        where = ", ".join(map(str, folders))
        raise InputError(f"{where} holds no text: {read} documents, all blank. Give other sources.")
    return stages


def normalize(text: str) -> str:
    """`text` with every run of more than 128 whitespace characters cut to its first 128."""
    return _GAP.sub(lambda gap: gap[0][:LONGEST_GAP], text)


def clean_file(task: tuple[Path, str, Path], bare: bool, parts: int) -> tuple[int, int]:
    """Normalize the rows of a file and scatter them by their new ids; texts that were cut, and by what."""
    file, name, scattered = task
    edited, cut_bytes = 0, 0

    def rounds() -> Iterator[tuple[pa.Table, np.ndarray]]:
        nonlocal edited, cut_bytes
        for read in _rounds(file, name, bare):
            texts, changed = _cut(read)
            edited += changed
            table = read.set_column(1, DOCUMENTS.field("text"), texts)
            data, ends = text_buffers(table)
            cut_bytes += int(text_sizes(read).sum() - (ends[-1] - ends[0]))
            ids = [xxhash.xxh3_128_hexdigest(data[start:end].data) for start, end in pairwise(ends.tolist())]
            yield (
                table.set_column(0, DOCUMENTS.field("id"), pa.array(ids, pa.string())),
                part_of(ids, parts),
            )

    scatter(scattered, rounds(), parts, DOCUMENTS)
    return edited, cut_bytes


def _rounds(file: Path, name: str, bare: bool) -> Iterator[pa.Table]:
    """The rows of a file as documents, about 64 MiB of them at a time."""
    held, size = [DOCUMENTS.empty_table()], 0
    for table in _documents(file, name, bare):
        held.append(table)
        size += table.nbytes
        if size >= ROUND_BYTES:
            yield pa.concat_tables(held).combine_chunks()
            held, size = held[:1], 0
    yield pa.concat_tables(held).combine_chunks()


def _documents(file: Path, name: str, bare: bool) -> Iterator[pa.Table]:
    first = 0
    if file.name.endswith(".parquet"):
        for batch in read_batches(file):
            if not bare and _are_documents(batch.schema):
                columns = [pc.fill_null(batch[key], "{}" if key == "meta" else "") for key in DOCUMENTS.names]
                yield pa.table(columns, DOCUMENTS.names).cast(DOCUMENTS)
            else:
                yield _from_rows(batch.to_pylist(), first, file, name, bare)
            first += batch.num_rows
        return
    rows = read_jsonl(file)
    while some := list(islice(rows, _ROWS)):
        yield _from_rows(some, first, file, name, bare)
        first += len(some)


def _are_documents(schema: pa.Schema) -> bool:
    """Whether they are, as strings of any width: what other tools write is large_string throughout."""
    is_text = (pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in schema.types)
    return set(schema.names) == set(DOCUMENTS.names) and all(is_text)


def _from_rows(rows: list[Any], first: int, file: Path, name: str, bare: bool) -> pa.Table:
    """Rows of any columns as documents: the id becomes source_id, what is no text goes into meta."""
    made = []
    for index, row in enumerate(rows, first):
        text = row.get("text", 0) if isinstance(row, dict) else 0
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        if not isinstance(text, str | None):
            raise InputError(
                f"{file}: row {index} has no text but {str(row)[:80]!r}, so it can't be a document. Name the "
                'column of the text "text".'
            )
        names = (row[key] for key in ("source_id", "id") if row.get(key) is not None)
        others = {key: value for key, value in row.items() if key not in ("id", "text", "source_id")}
        meta = orjson.dumps({} if bare else others, default=str, option=orjson.OPT_SORT_KEYS).decode()
        made.append(("", text or "", str(next(names, f"{name}:{index}")), meta))
    return table_of(made, DOCUMENTS)


def _cut(table: pa.Table) -> tuple[pa.Array, int]:
    """The texts with long gaps cut, and how many had any."""
    texts = table.column("text").combine_chunks()
    suspected = np.zeros(table.num_rows, bool)
    kernels.long_gaps(*text_buffers(table), LONGEST_GAP, suspected)
    if not suspected.any():
        return texts, 0
    before = texts.filter(pa.array(suspected)).to_pylist()
    after = [normalize(text) for text in before]
    edited = sum(old != new for old, new in zip(before, after, strict=True))
    cut = [texts, pa.array(suspected), pa.array(after, pa.large_string())]
    return pc.call_function("replace_with_mask", cut), edited


def unique_part(
    index: int, scattered: Sequence[Path], parts: int, out: Path, rejected: Path, exact: bool
) -> tuple[Stage, Stage]:
    """Write one sorted part without blanks and repeats; what was dropped."""
    name = part_name(index, parts)
    table = sorted_by_id(gather(scattered, index, parts, DOCUMENTS))
    sizes = text_sizes(table)
    is_blank = sizes <= LONGEST_GAP * 4
    short = table.column("text").filter(pa.array(is_blank)).to_pylist()
    is_blank[is_blank] = [not text.strip() for text in short]
    ids = table.column("id").to_numpy()
    is_repeat = np.r_[False, ids[1:] == ids[:-1]][: len(ids)] & ~is_blank & exact
    cleaned = Stage("normalize").take(sizes, ~is_blank)
    unique = Stage("exact").take(sizes[~is_blank], ~is_repeat[~is_blank])
    for stage, dropped in ((cleaned, is_blank), (unique, is_repeat)):
        if dropped.any():
            gone, reasons = table.filter(pa.array(dropped)), _reasons(stage.stage, table, dropped)
            write_rejected(rejected / stage.stage / name, gone, reasons)
            stage.dropped["blank" if dropped is is_blank else "exact duplicate"] = int(dropped.sum())
    write_parquet(out / name, table.filter(pa.array(~is_blank & ~is_repeat)).combine_chunks())
    return cleaned, unique


def _reasons(stage: str, table: pa.Table, dropped: np.ndarray) -> list[str]:
    if stage == "normalize":
        return ["blank"] * int(dropped.sum())
    firsts = np.maximum.accumulate(np.where(dropped, 0, np.arange(len(dropped))))[dropped]
    first = table.column("source_id").take(pa.array(firsts)).to_pylist()
    return [f"exact duplicate: of {name}" for name in first]
