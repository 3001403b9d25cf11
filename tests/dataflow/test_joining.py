"""Co-partitioned data sets are joined shard by shard, and a pair that would be missed is refused."""

import dataset_functions as functions
import pytest
from hypothesis import given, strategies as st

from lmlab.core.errors import ConfigError, InputError
from lmlab.dataflow import Dataset, write_jsonl
from lmlab.dataflow.joining import Join, both, merge_join
from lmlab.storage import Path

HERE = {"on": "local", "workers": 1}
SIDE = st.lists(st.tuples(st.integers(0, 6), st.integers()), max_size=12).map(sorted)


@given(left=SIDE, right=SIDE, how=st.sampled_from(["inner", "left"]))
def test_pairs_are_those_of_a_nested_loop(left, right, how):
    found = list(merge_join(iter(left), iter(right), Join(lambda row: row[0], how, None), lambda *pair: pair))
    wanted = []
    for row in left:
        partners = [other for other in right if other[0] == row[0]]
        wanted += [(row, other) for other in partners or [None] * (how == "left")]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert [pair[0][0] for pair in found] == sorted(pair[0][0] for pair in found)


def test_the_columns_of_the_left_side_win():
    assert both({"id": 1, "a": 2}, {"id": 1, "a": 3, "b": 4}) == {"id": 1, "a": 2, "b": 4}
    assert both({"id": 1}, None) == {"id": 1}


def write_side(folder, name, shards, **more):
    for shard in range(shards):
        rows = ({"id": n, **more} for n in range(shard, 20, shards))
        write_jsonl(Path(folder / name / f"part-{shard}.jsonl"), rows)
    return Dataset.files(f"{folder}/{name}/*.jsonl")


def test_files_of_equal_names_are_joined_without_a_shuffle(any_runner, tmp_path):
    left, right = write_side(tmp_path, "left", 2, a=1), write_side(tmp_path, "right", 2, b=2)
    joined = left.sorted_merge_join(right.filter(functions.is_small), "id", how="left")
    with any_runner(2) as runner:
        result = joined.run(runner=runner)
    assert {row["id"]: row.get("b") for row in result.values} == {n: 2 if n < 10 else None for n in range(20)}
    assert "shuffle_rows" not in result.counters


def test_the_results_of_two_shuffles_are_joined(tmp_path):
    rows = Dataset.from_list([{"id": n % 7, "n": n} for n in range(50)], shards=3)
    sizes = rows.group_by("id", functions.sizes, shards=2).map(functions.key_as_id)
    firsts = rows.dedup("id", shards=2)
    found = firsts.sorted_merge_join(sizes, "id").write_jsonl(f"{tmp_path}/{{shard}}.jsonl").run(**HERE)
    assert found.counters["records_out"] == 7
    again = firsts.sorted_merge_join(sizes, "id").write_jsonl(f"{tmp_path}/{{shard}}.jsonl").run(**HERE)
    assert again.counters == {**found.counters, "skipped": 2}


def test_sides_that_are_not_co_partitioned_are_refused(tmp_path):
    left, right = write_side(tmp_path, "left", 2), write_side(tmp_path, "right", 3)
    with pytest.raises(ConfigError, match="of 2 and 3 shards"):
        left.sorted_merge_join(right, "id")
    (tmp_path / "left" / "part-1.jsonl").rename(tmp_path / "left" / "part-9.jsonl")
    with pytest.raises(ConfigError, match="of part-9 and part-1: shards of other names"):
        Dataset.files(f"{tmp_path}/left/*").sorted_merge_join(write_side(tmp_path, "other", 2), "id")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_that_is_not_sorted_is_named(tmp_path, side):
    sides = {name: write_side(tmp_path, name, 1) for name in ("left", "right")}
    write_jsonl(Path(tmp_path / side / "part-0.jsonl"), [{"id": 3}, {"id": 2}, {"id": 4}])
    with pytest.raises(InputError, match=f"The {side} side of a sorted_merge_join is not sorted by 'id'"):
        sides["left"].sorted_merge_join(sides["right"], "id").run(**HERE)
