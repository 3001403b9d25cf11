"""Attributes: columns about documents, in files of the same names and row order as the documents' parts.

So a join reads two files side by side and never shuffles; the ids stand in both and are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmlab.core.errors import InputError
from lmlab.corpus.schema import DOCUMENTS, parts_of
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.workers import Workers
from lmlab.storage import Path

Annotation = Callable[[pa.Table, Any], pa.Table]
Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AnnotateTask:
    """One part of documents to annotate."""

    part: Path
    out: Path
    function: Annotation
    schema: pa.Schema
    settings: Any


def annotate(
    documents: Path,
    out: Path,
    function: Annotation,
    schema: pa.Schema,
    runner: Workers,
    *,
    name: str,
    say: Say,
    settings: Any = None,
) -> int:
    """Write what `function(documents, settings)` says of every part; how many documents there are.

    It gets a table with all columns of documents and answers with one of `schema`: `id` first, the same ids
    in the same order. A part that is finished (by an earlier attempt of the same recipe) is not made again.
    """
    counts = runner.run(
        annotate_part,
        [AnnotateTask(part, out / part.name, function, schema, settings) for part in parts_of(documents)],
        name=name,
        progress=lambda done, total: say(name, done, total),
    )
    return sum(counts)


def annotate_part(task: AnnotateTask) -> int:
    """Write the attributes of one part, unless they are there; its rows."""
    rows = count_rows(task.part)
    if task.out.exists() and count_rows(task.out) == rows:
        return rows
    table = read_parquet(task.part, DOCUMENTS.names)
    made = task.function(table, task.settings)
    if not made.column("id").combine_chunks().equals(table.column("id").combine_chunks()):
        raise InputError(
            f"{task.function.__name__} answered for {task.part} with {made.num_rows} rows that are not its "
            f"{rows} documents in order, so the attributes would be another document's. Return a row for "
            "every document, with its id."
        )
    write_parquet(task.out, made.cast(task.schema))
    return rows


def read_attribute(
    folder: Path, part_name: str, ids: Sequence[str] | pa.ChunkedArray, *, may_miss: bool = False
) -> pa.Table:
    """The attributes of these documents of one part, a row for each id in order.

    The file may speak of more documents (the ids then being those that were kept). InputError if it has no
    row for one; with `may_miss` that row is null.
    """
    table = read_parquet(folder / part_name)
    wanted = ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([pa.array(ids, pa.string())])
    if table.column("id").equals(wanted):
        return table
    place = pc.call_function("index_in", [wanted], pc.SetLookupOptions(table.column("id")))
    if place.null_count and not may_miss:
        first = pc.index(place.is_null(), True).as_py()
        raise InputError(
            f"{folder / part_name} has no row for {place.null_count} of {len(wanted)} documents, the first "
            f"{wanted[first].as_py()}: it was made of others. Make it again of these documents."
        )
    return table.take(place)


def count_rows(path: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    with path.open() as file:
        return pq.read_metadata(file).num_rows
