"""Attributes: columns about documents, in files of the same names and row order as the documents' parts.

So a join reads two files side by side and never shuffles; the ids stand in both and are compared.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmlab.core.errors import InputError
from lmlab.corpus.schema import DOCUMENTS, parts_of
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path
from lmlab.storage.parts import run_all

Annotation = Callable[[pa.Table, Any], pa.Table]
Say = Callable[[str, int, int], None]


def annotate(
    documents: Path,
    out: Path,
    function: Annotation,
    schema: pa.Schema,
    runner: Runner,
    *,
    name: str,
    say: Say,
    settings: Any = None,
) -> int:
    """Write what `function(documents, settings)` says of every part; how many documents there are.

    It gets a table with all columns of documents and answers with one of `schema`: `id` first, the same ids
    in the same order. A part that is finished (by an earlier attempt of the same recipe) is not made again.
    """
    make = partial(_annotated, out=out, function=function, schema=schema, settings=settings)
    return sum(runner.run(make, parts_of(documents), name=name, progress=partial(say, name)))


def _annotated(part: Path, out: Path, function: Annotation, schema: pa.Schema, settings: Any) -> int:
    rows = count_rows(part)
    if (out / part.name).exists() and count_rows(out / part.name) == rows:
        return rows
    table = read_parquet(part, DOCUMENTS.names)
    made = function(table, settings)
    if not made.column("id").combine_chunks().equals(table.column("id").combine_chunks()):
        raise InputError(
            f"{function.__name__} answered for {part} with {made.num_rows} rows that are not its {rows} "
            "documents in order, so the attributes would be another document's. Return a row for every "
            "document, with its id."
        )
    write_parquet(out / part.name, made.cast(schema))
    return rows


def read_attribute(
    folder: Path, part_name: str, column: str, wanted: pa.ChunkedArray, *, may_miss: bool = False
) -> pa.Table:
    """The id and one attribute of the documents of these ids in one part, in their order.

    The file may speak of more documents (the ids then being those that were kept). InputError if it has no
    row for one; with `may_miss` that row is null.
    """
    table = read_parquet(folder / part_name, ["id", column])
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


class Parts:
    """The parts of several corpora in order, their rows numbered through."""

    def __init__(self, corpora: Mapping[str, Path]) -> None:
        self.places = [(name, path) for name, folder in corpora.items() for path in parts_of(folder)]
        self.paths = [path for _, path in self.places]
        self.starts = np.cumsum([0, *run_all(count_rows, self.paths)])

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Sorted row numbers, by part and counted from its start."""
        ends = np.searchsorted(rows, self.starts)
        return [rows[a:b] - start for a, b, start in zip(ends[:-1], ends[1:], self.starts[:-1], strict=True)]

    def in_folder(self, out: Path) -> list[Path]:
        """Where attributes of each part go: below `out`, by the names of the corpora that have one."""
        return [(out / corpus if corpus else out) / path.name for corpus, path in self.places]


def mark(parts: Parts, out: Path, rows: np.ndarray, values: pa.Table, runner: Runner) -> None:
    """Write attributes that are null but for these sorted rows, which get `values` (one row for each)."""
    tasks, first = [], 0
    for part, target, own in zip(parts.paths, parts.in_folder(out), parts.split(rows), strict=True):
        # Taken: a slice would be sent to the worker with all of the table behind it.
        tasks.append((part, target, own, values.take(np.arange(first, first + len(own)))))
        first += len(own)
    runner.run(_mark_part, tasks, name="mark")


def _mark_part(task: tuple[Path, Path, np.ndarray, pa.Table]) -> None:
    part, out, rows, values = task
    ids = read_parquet(part, ["id"])
    place = np.full(ids.num_rows, -1)
    place[rows] = np.arange(len(rows))
    values = values.take(pa.array(place, mask=place < 0))
    columns = dict(zip(values.column_names, values.columns, strict=True))
    write_parquet(out, pa.table({"id": ids.column("id"), **columns}))


def count_rows(path: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    with path.open() as file:
        return pq.read_metadata(file).num_rows
