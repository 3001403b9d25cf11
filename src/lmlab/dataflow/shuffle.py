"""Moving rows to partitions through files: each mapper writes one Arrow IPC file, a reducer reads its part.

A file holds its record batches in rounds, one batch for every target in each round (an empty one where there
is nothing), so the batches of target t are t, t + n, t + 2n, … and no index is needed.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from lmlab.storage import Path


def scatter(
    path: Path, rounds: Iterable[tuple[pa.Table, np.ndarray]], targets: int, schema: pa.Schema
) -> None:
    """Write tables to `path`, each with an array that gives the target (0 … targets-1) of every row."""
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with path.writer() as temporary, pa.ipc.new_file(str(temporary), schema, options=options) as writer:
        for table, target_of_row in rounds:
            order = np.argsort(target_of_row, kind="stable")
            ends = np.searchsorted(target_of_row[order], np.arange(targets), side="right").tolist()
            for start, end in zip([0, *ends[:-1]], ends, strict=True):
                writer.write_batch(_one_batch(table.take(order[start:end]), schema))


def gather(paths: Sequence[Path], target: int, targets: int, schema: pa.Schema) -> pa.Table:
    """All rows of one target, in the order of the files and within them as written."""
    batches = []
    for path in paths:
        with pa.memory_map(str(path.local)) as source:
            reader = pa.ipc.open_file(source)
            batches += [reader.get_batch(i) for i in range(target, reader.num_record_batches, targets)]
    return pa.Table.from_batches(batches, schema=schema).combine_chunks()


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
