"""Rows and records scattered by any number of mappers are gathered complete, in order, and once."""

from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import InputError, StorageError
from lmlab.dataflow import gather, scatter, shuffle
from lmlab.dataflow.shuffle import Run, Shuffle, decode, merge, ordered, ordered_record, scatter_records
from lmlab.storage import Path

SCHEMA = pa.schema([("row", pa.int64()), ("text", pa.large_string())])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**64) + 1, 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
RECORD = st.fixed_dictionaries(
    {"key": st.sampled_from(["a", "b", "", "a\0", 1, 2.5, None]), "sort": st.integers(0, 3)}
)


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


@settings(max_examples=300)
@given(st.lists(st.tuples(SCALARS, st.text() | st.integers(-5, 5)), min_size=2, max_size=8))
def test_bytes_of_keys_compare_as_the_values_do(values):
    kinds = {type(None): 0, bool: 1, int: 2, float: 2, str: 3, bytes: 4}

    def natural(pair):
        return [(kinds[type(value)], 0 if value is None else value) for value in pair]

    assert sorted(values, key=ordered) == sorted(values, key=natural)
    for one, other in pairwise(values):
        assert (ordered(one) == ordered(other)) == (natural(one) == natural(other))


def test_equal_numbers_are_one_key_and_what_has_no_order_is_refused():
    assert ordered(1) == ordered(1.0) != ordered(True)
    assert ordered(0.0) == ordered(-0.0)
    assert ordered(2**53) < ordered(2**53 + 1) < ordered(2.0**53 + 2)
    for value in ({1}, 2**64, {"a": 1}, object()):
        with pytest.raises(InputError, match=r"the key .* has no order of its own"):
            ordered(value, "key")


def scattered(folder, mappers, how: Shuffle) -> list[dict[int, list[Run]]]:
    return [
        scatter_records(Path(folder / f"{index}.arrow"), (ordered_record(row, how) for row in rows), how)
        for index, rows in enumerate(mappers)
    ]


@pytest.mark.parametrize(
    "budgets",
    [
        pytest.param((64 << 20, 1 << 20, 96 << 20), id="one round"),
        pytest.param((2_000, 100, 96 << 20), id="many rounds"),
        pytest.param((2_000, 100, 300), id="more runs than fit, so that some are merged to a file first"),
    ],
)
@settings(max_examples=30)
@given(mappers=st.lists(st.lists(RECORD, max_size=40), min_size=1, max_size=4))
def test_records_are_merged_in_the_order_of_a_stable_sort_whatever_the_budgets(
    tmp_path_factory, budgets, mappers
):
    folder = tmp_path_factory.mktemp("records")
    for number, row in enumerate(row for rows in mappers for row in rows):
        row["number"] = number
    how = Shuffle("key", "sort", None, 3)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("ROUND_BYTES", "BATCH_BYTES", "MERGE_BYTES"), budgets, strict=True):
            patch.setattr(shuffle, name, size)
        mapped = scattered(folder, mappers, how)
        runs = [[run for found in mapped for run in found.get(target, ())] for target in range(3)]
        got = [[decode(row[2]) for row in merge(each, Path(folder / "spill"))] for each in runs]
    everything = [row for rows in mappers for row in rows]
    assert sorted(row["number"] for rows in got for row in rows) == [row["number"] for row in everything]
    homes = {repr(row["key"]): target for target, rows in enumerate(got) for row in rows}
    for target, rows in enumerate(got):
        mine = [row for row in everything if homes[repr(row["key"])] == target]
        assert rows == sorted(mine, key=lambda row: (ordered(row["key"]), row["sort"]))
    assert not (folder / "spill").exists()


def test_a_scattered_file_is_an_arrow_stream_and_its_runs_are_found_without_reading_it(tmp_path):
    how = Shuffle("key", None, None, 50)
    (runs,) = scattered(tmp_path, [[{"key": n, "text": "x" * 100} for n in range(2_000)]], how)
    with pa.ipc.open_stream(tmp_path / "0.arrow") as reader:
        assert reader.read_all().num_rows == 2_000
    spans = sorted((run.offset, run.offset + sum(run.lengths)) for found in runs.values() for run in found)
    assert len(spans) == 50
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert spans[-1][1] <= (tmp_path / "0.arrow").stat().st_size < spans[-1][1] + 100  # no index that grows


def test_a_reducer_holds_a_batch_of_each_run_and_never_a_whole_one(tmp_path):
    how = Shuffle("key", None, None, 1)
    (runs,) = scattered(tmp_path, [[{"key": "hot", "text": "x" * 100_000} for _ in range(100)]], how)
    (run,) = runs[0]
    assert run.size_bytes > 10_000_000
    assert run.largest_bytes < 1_200_000
    groups = groupby(merge([run], Path(tmp_path / "spill")), lambda row: row[0])
    assert [sum(1 for _ in rows) for _, rows in groups] == [100]


def test_a_cut_file_is_named(tmp_path):
    how = Shuffle("key", None, None, 1)
    (runs,) = scattered(tmp_path, [[{"key": n} for n in range(100)]], how)
    whole = (tmp_path / "0.arrow").read_bytes()
    (tmp_path / "0.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match=r"0\.arrow ends at .* bytes: it was cut"):
        list(merge(runs[0], Path(tmp_path / "spill")))
