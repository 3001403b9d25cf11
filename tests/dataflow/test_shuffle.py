"""Rows scattered by any number of mappers are gathered complete, in order, and once."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from lmlab.dataflow import gather, scatter
from lmlab.storage import Path

SCHEMA = pa.schema([("row", pa.int64()), ("text", pa.large_string())])


@settings(max_examples=40, deadline=None)
@given(
    mappers=st.lists(st.lists(st.lists(st.integers(0, 4), max_size=20), max_size=3), min_size=1, max_size=3)
)
def test_every_row_arrives_once_at_its_target_and_in_order(tmp_path_factory, mappers):
    folder = tmp_path_factory.mktemp("shuffle")
    wanted: dict[int, list[int]] = {target: [] for target in range(5)}
    number, paths = 0, []
    for index, rounds in enumerate(mappers):
        tables = []
        for targets in rounds:
            rows = list(range(number, number + len(targets)))
            number += len(targets)
            tables.append((pa.table({"row": rows, "text": [str(r) for r in rows]}, SCHEMA),
                           np.array(targets, np.int64)))  # fmt: skip
            for row, target in zip(rows, targets, strict=True):
                wanted[target].append(row)
        paths.append(Path(folder / f"{index}.arrow"))
        scatter(paths[-1], tables, 5, SCHEMA)
    for target, rows in wanted.items():
        table = gather(paths, target, 5, SCHEMA)
        assert table.schema == SCHEMA
        assert table.column("row").to_pylist() == rows
        assert table.column("text").to_pylist() == [str(row) for row in rows]
