"""Data sets give the same bytes wherever and however they run, and go on where they were killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import dataset_functions as functions
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lmlab.core.errors import ConfigError, InputError, StepFailed, StorageError
from lmlab.core.resources import Resources
from lmlab.dataflow import (
    Dataset,
    Limits,
    first,
    open_runner,
    read_jsonl,
    read_parquet,
    write_jsonl,
)
from lmlab.storage import Path as StoragePath

HERE = {"on": "local", "workers": 1}


def write_shards(folder: Path, shards: int = 4, rows: int = 30, suffix: str = ".jsonl.zst", **more) -> str:
    for shard in range(shards):
        numbers = range(shard * rows, shard * rows + rows)
        write_jsonl(
            StoragePath(folder / f"in-{shard:0{len(str(shards - 1))}d}{suffix}"),
            ({"id": f"d{n}", "n": n, "text": f"word{n % 7} word{n % 3} ü", **more} for n in numbers),
        )
    return f"{folder}/in-*{suffix}"


def digest(paths: list[StoragePath]) -> str:
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in paths)).hexdigest()


def test_records_go_through_all_operations_in_order(tmp_path):
    pattern = write_shards(tmp_path, shards=2, rows=6)
    found = (
        Dataset.files(pattern)
        .filter(functions.is_even)
        .map(functions.add_length)
        .select("n", "length")
        .map_shard(functions.numbered)
        .run(**HERE)
    )
    shards = ["0/2 in-0.jsonl.zst"] * 3 + ["1/2 in-1.jsonl.zst"] * 3
    assert [row["n"] for row in found.values] == [0, 2, 4, 6, 8, 10]
    assert [row["shard"] for row in found.values] == shards
    assert found.counters["records_in"] == 12
    assert found.counters["records_out"] == 6


def test_windows_and_the_first_records_of_each_shard(tmp_path):
    rows = Dataset.files(write_shards(tmp_path, shards=2, rows=5)).select("n")
    assert [[row["n"] for row in group] for group in rows.window(3).run(**HERE).values] == [
        [0, 1, 2],
        [3, 4],
        [5, 6, 7],
        [8, 9],
    ]
    taken = rows.take_per_shard(2).run(**HERE)
    assert [row["n"] for row in taken.values] == [0, 1, 5, 6]
    assert taken.counters["records_in"] == 4  # no more are read


def test_lists_are_a_shard_each_or_shared_out(tmp_path):
    data = Dataset.from_list([{"n": n} for n in range(5)])
    assert len(data.shards) == 5
    assert [len(shard) for shard in data.reshard(2).shards] == [2, 3]
    assert Dataset.from_iterable(({"n": n} for n in range(5)), shards=3).count(**HERE) == 5
    assert Dataset.from_list([]).run(**HERE).values == []
    with pytest.raises(ConfigError, match=r"reshard\(6\): there are 5 pieces"):
        data.reshard(6)
    with pytest.raises(ConfigError, match="straight after the source"):
        data.map(functions.add_length).reshard(2)


def test_count_and_reduce_over_all_shards(tmp_path):
    data = Dataset.files(write_shards(tmp_path, shards=3, rows=5))
    assert data.count(**HERE) == 15
    assert data.reduce(functions.longest, max, **HERE) == 13


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_pattern_with_braces_finds_files_in_order_of_name_and_tells_the_path(tmp_path, suffix):
    write_shards(tmp_path, shards=4, rows=1, suffix=suffix)
    (tmp_path / ".hidden.jsonl").write_text("broken")
    found = Dataset.files(f"{tmp_path}/in-{{2,0}}*", path_column="path").run(**HERE).values
    assert [(row["n"], row["path"]) for row in found] == [(n, f"{tmp_path}/in-{n}{suffix}") for n in (0, 2)]


def test_a_pattern_that_fits_nothing_is_an_error_unless_that_is_allowed(tmp_path):
    with pytest.raises(InputError, match=r"No file fits .*\*\.jsonl"):
        Dataset.files(f"{tmp_path}/*.jsonl")
    assert Dataset.files(f"{tmp_path}/*.jsonl", allow_empty=True).run(**HERE).values == []
    (tmp_path / "data.csv").touch()
    with pytest.raises(ConfigError, match="does not say the format"):
        Dataset.files(tmp_path / "data.csv")


def write_numbers(path: Path, rows: int = 1000, group: int = 100) -> None:
    table = pa.table(
        {"n": range(rows), "text": pa.array([f"text {n}" for n in range(rows)], pa.large_string())}
    )
    pq.write_table(table, path, row_group_size=group, compression="none")


def test_large_parquet_files_are_cut_between_row_groups_and_every_row_comes_once(tmp_path):
    write_numbers(tmp_path / "a.parquet")
    data = Dataset.files(tmp_path / "a.parquet", columns=["n"], shard_bytes=8_000)
    assert 2 < len(data.shards) < 10
    assert data.run(**HERE).values == [{"n": n} for n in range(1000)]


def test_an_expression_of_pyarrow_is_pushed_into_the_reader_and_one_of_polars_gives_the_same(tmp_path):
    write_numbers(tmp_path / "a.parquet")
    data = Dataset.files(tmp_path / "a.parquet")
    pushed = data.filter(pc.field("n") >= 990).select("text").run(**HERE)
    assert pushed.values == [{"text": f"text {n}"} for n in range(990, 1000)]
    assert pushed.counters["records_in"] == 10
    after = data.filter(pl.col("n") >= 990).select("text").run(**HERE)
    assert after.values == pushed.values
    jsonl = Dataset.files(write_shards(tmp_path, shards=1, rows=5)).filter(pc.field("n") > 3)
    assert [row["id"] for row in jsonl.run(**HERE).values] == ["d4"]


def test_tables_go_from_parquet_to_parquet_without_becoming_records(tmp_path):
    write_numbers(tmp_path / "a.parquet")
    out = Dataset.files(tmp_path / "a.parquet").map_batches(functions.upper)
    result = out.write_parquet(f"{tmp_path}/out/{{basename}}.parquet").run(**HERE)
    table = read_parquet(result.outputs[0])
    assert table["text"].to_pylist() == [f"TEXT {n}" for n in range(1000)]
    assert result.counters["records_in"] == result.counters["records_out"] == 1000


@pytest.mark.parametrize("shards", [1, 3])
def test_groups_are_reduced_in_order_of_their_keys_each_in_one_shard(tmp_path, shards):
    data = Dataset.files(write_shards(tmp_path)).flat_map(functions.words)
    plain = data.group_by("word", functions.totals, shards=shards).run(**HERE)
    combined = data.group_by("word", functions.totals, combine=functions.totals, shards=shards).run(**HERE)
    assert plain.values == combined.values
    assert {row["word"]: row["count"] for row in plain.values} == {
        **{f"word{n}": (120 + 6 - n) // 7 + (40 if n < 3 else 0) for n in range(7)},
        "ü": 120,
    }
    if shards == 1:
        assert [row["word"] for row in plain.values] == sorted(row["word"] for row in plain.values)
    assert combined.counters["shuffle_rows"] == 4 * 8 < plain.counters["shuffle_rows"] == 360


def test_the_records_of_a_key_come_sorted_and_otherwise_as_they_were_read(tmp_path):
    rows = [
        {"k": n % 2, "score": score, "n": n} for n, score in enumerate([3, None, 1.5, 2, 1, 2, -7, 10**18])
    ]
    data = Dataset.from_list(rows, shards=3)
    got = data.group_by("k", functions.in_order, sort="score", shards=1).run(**HERE).values
    assert [(row["key"], row["n"]) for row in got] == [
        (0, 6),
        (0, 4),
        (0, 2),
        (0, 0),
        (1, 1),
        (1, 3),
        (1, 5),
        (1, 7),
    ]
    unsorted = data.group_by("k", functions.in_order, shards=1).run(**HERE).values
    assert [row["n"] for row in unsorted] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert [row["n"] for row in data.dedup("k", sort="score", shards=1).run(**HERE).values] == [6, 1]
    assert [row["n"] for row in data.dedup("k", shards=1).run(**HERE).values] == [0, 1]


def test_outputs_are_the_same_bytes_for_any_number_of_workers_and_wherever_they_run(any_runner, tmp_path):
    data = Dataset.files(write_shards(tmp_path)).map(functions.add_length).flat_map(functions.words)
    digests = set()
    for workers in (1, 3):
        out = data.group_by("word", functions.totals, sort="id", shards=3).write_parquet(
            f"{tmp_path}/out-{workers}/{{shard:05d}}-of-{{total:05d}}.parquet"
        )
        with any_runner(workers) as runner:
            digests.add(digest(out.run(runner=runner).outputs))
        assert [
            path.name for path in (tmp_path / f"out-{workers}").iterdir() if path.name.startswith(".work")
        ] == []
    assert digests == {digest(out.run(**HERE).outputs)}


def test_a_shuffle_works_on_any_store(any_root):
    folder = any_root / "data"
    for shard in range(3):
        write_jsonl(folder / f"{shard}.jsonl.zst", ({"id": n % 5, "n": n} for n in range(shard, 60, 3)))
    data = Dataset.files(f"{folder}/*.jsonl.zst").group_by("id", functions.sizes, shards=2)
    out = data.write_parquet(f"{folder}/out/{{shard}}.parquet")
    result = out.run(on="local")
    rows = [row for path in result.outputs for row in read_parquet(path).to_pylist()]
    assert sorted((row["key"], row["rows"]) for row in rows) == [(n, 12) for n in range(5)]
    assert out.run(on="local").counters["skipped"] == 2
    assert not [path for path in folder.walk() if ".work" in str(path)]


# -- failures -------------------------------------------------------------------------------------------


def test_poison_record_fails_after_three_tries_naming_shard_record_and_id(any_runner, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    data = Dataset.files(write_shards(tmp_path, marks=str(marks))).map(functions.poisoned)
    with any_runner(2) as runner, pytest.raises(StepFailed) as caught:
        data.write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl").run(runner=runner)
    assert len(list(marks.iterdir())) == 3
    message = str(caught.value)
    assert "record 17 (d17) of in-0.jsonl.zst: ValueError: no such entity" in message
    assert "dataset_functions.py:" in message
    assert not (tmp_path / "out" / "0.jsonl").exists()


def test_a_quarantined_record_lies_beside_the_output_and_the_rest_goes_on(any_runner, tmp_path):
    data = Dataset.files(write_shards(tmp_path)).map(functions.poisoned)
    with any_runner(2) as runner:
        result = data.write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl").run(runner=runner, on_error="quarantine")
    assert result.quarantined == result.counters["quarantined"] == 1
    assert result.counters["records_out"] == 119
    (file,) = (tmp_path / "out" / "quarantine").iterdir()
    (row,) = read_jsonl(StoragePath(file))
    assert (row["shard"], row["index"], row["id"]) == ("in-0.jsonl.zst", 17, "d17")
    assert row["error"] == "ValueError: no such entity"
    assert row["record"]["n"] == 17
    assert result.failed == ()


def test_broken_lines_and_cut_files_can_be_quarantined(tmp_path):
    pattern = write_shards(tmp_path, shards=2, suffix=".jsonl")
    lines = (tmp_path / "in-0.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "in-0.jsonl").write_bytes(b"".join(lines[:5]) + b'{"n": \xff}\n' + b"".join(lines[5:]))
    write_shards(tmp_path / "packed", shards=1)
    whole = (tmp_path / "packed" / "in-0.jsonl.zst").read_bytes()
    (tmp_path / "in-2.jsonl.zst").write_bytes(whole[:-3])
    data = Dataset.files(f"{tmp_path}/in-*").write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl")
    with pytest.raises(InputError, match=r"in-0\.jsonl, line 6, can't be read"):
        data.run(**HERE)
    result = data.run(**HERE, on_error="quarantine")
    assert result.counters["quarantined"] == 2
    assert result.failed == (f"{tmp_path}/in-2.jsonl.zst",)
    assert len(list(read_jsonl(result.outputs[0]))) == 30
    assert pattern


def test_an_input_error_of_a_function_names_the_record_and_is_not_tried_again(tmp_path):
    data = Dataset.files(write_shards(tmp_path)).map(functions.unreadable)
    with pytest.raises(InputError, match=r"record 0 \(d0\) of in-0\.jsonl\.zst: this text is no text"):
        data.run(**HERE)


def test_a_key_or_record_that_can_not_be_moved_is_named(tmp_path):
    data = Dataset.from_list([{"n": 1, "set": {1}}])
    with pytest.raises(InputError, match=r"record 0 of shard 0: the key \{1\} is of type set"):
        data.group_by("set", first).run(**HERE)
    with pytest.raises(InputError, match=r"the sort value \{1\} is of type set"):
        data.group_by("n", first, sort="set").run(**HERE)
    with pytest.raises(InputError, match="it has no column 'm'"):
        data.group_by("m", first).run(**HERE)
    with pytest.raises(InputError, match=r"it can't be sent to a reducer .*generator"):
        Dataset.from_list([{"n": 1}]).map(functions.with_generator).group_by("n", first).run(**HERE)


def test_a_broken_parquet_file_can_be_quarantined_and_the_others_are_read(tmp_path):
    write_numbers(tmp_path / "a.parquet", rows=10)
    (tmp_path / "b.parquet").write_bytes(b"broken")
    data = Dataset.files(f"{tmp_path}/*.parquet").write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl")
    with pytest.raises(InputError, match=r"b\.parquet can't be read as Parquet"):
        data.run(**HERE)
    result = data.run(**HERE, on_error="quarantine")
    assert result.failed == (f"{tmp_path}/b.parquet",)
    assert (result.counters["records_out"], result.quarantined) == (10, 1)


def test_a_filter_that_does_not_fit_the_file_is_named_and_one_on_its_path_works(tmp_path):
    write_numbers(tmp_path / "a.parquet", rows=10)
    data = Dataset.files(tmp_path / "a.parquet", path_column="path")
    assert data.filter(pc.field("path") != "").count(**HERE) == 10
    for condition in (pc.field("m") > 1, pc.field("n") > "x"):
        with pytest.raises(InputError, match=r"a\.parquet does not fit the filter"):
            Dataset.files(tmp_path / "a.parquet").filter(condition).run(**HERE)


def test_records_keep_their_types_through_a_group_by():
    record = {"n": 1, "day": datetime(2026, 1, 2, tzinfo=UTC), "pair": (1, 2), "price": Decimal("1.5")}
    data = Dataset.from_list([{**record, "naive": datetime(2026, 1, 2)}, record])
    assert data.dedup("n").run(**HERE).values == [{**record, "naive": datetime(2026, 1, 2)}]


def test_all_records_of_a_key_that_fails_in_a_reducer_are_set_aside(tmp_path):
    data = Dataset.from_list([{"n": n, "odd": n % 2} for n in range(20)], shards=2)
    grouped = data.group_by("odd", functions.fails_late, shards=1)
    result = grouped.write_jsonl(f"{tmp_path}/all.jsonl").run(**HERE, on_error="quarantine")
    rows = list(read_jsonl(StoragePath(tmp_path / "quarantine" / "0-00000.jsonl")))
    assert [row["record"]["n"] for row in rows] == list(range(1, 20, 2))
    assert list(read_jsonl(result.outputs[0])) == [{"key": 0}]
    assert result.quarantined == 10
    keyed = data.group_by("n", functions.sizes, shards=1)
    joined = keyed.sorted_merge_join(data.group_by("n", functions.fails_late, shards=1), "key")
    result = joined.write_jsonl(f"{tmp_path}/join/all.jsonl").run(**HERE, on_error="quarantine")
    assert (result.quarantined, result.counters["records_out"]) == (1, 19)


def test_values_of_a_wrong_kind_are_named(tmp_path):
    data = Dataset.from_list([{"n": 1}])
    with pytest.raises(InputError, match="shard 0: None is no dict, which a table takes"):
        data.map(functions.nothing).write_parquet(f"{tmp_path}/{{shard}}.parquet").run(**HERE)
    with pytest.raises(InputError, match="map_batches made NoneType of a table"):
        data.map_batches(functions.nothing).run(**HERE)
    with pytest.raises(InputError, match=r"record 0 of shard 0: it has no column 'm'"):
        data.select("m").run(**HERE)
    with pytest.raises(ConfigError, match=r"is a folder\. Say which of its files"):
        Dataset.files(tmp_path)
    with pytest.raises(ConfigError, match="on_error='skip' is not known"):
        data.run(**HERE, on_error="skip")
    with pytest.raises(ConfigError, match="how='outer' is not known"):
        data.sorted_merge_join(data, "n", how="outer")
    endless: list = []
    endless.append(endless)
    with pytest.raises(ConfigError, match=r"can't be sent to a worker .*cyclic"):
        data.share(endless=endless).run(**HERE)


def test_an_empty_shard_counts_as_nothing_rather_than_not_at_all(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    found = Dataset.files(tmp_path / "empty.jsonl").run(**HERE)
    assert (found.counters["records_in"], found.counters["records_out"]) == (0, 0)
    assert Dataset.from_list([], shards=2).dedup("id").count(**HERE) == 0


def test_a_function_of_the_running_script_is_refused_in_one_line_or_runs_here(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""if True:
    import sys
    from lmlab.core.errors import ConfigError
    from lmlab.dataflow import Dataset
    def double(row): return row * 2
    data = Dataset.from_list([1, 2]).map(double)
    try:
        data.run(on="local", workers=2)
    except ConfigError as error:
        sys.stdout.write(f"{error}|{data.run(on='local', workers=1).values}")
""")
    told, values = subprocess.check_output([sys.executable, script], text=True).split("|")
    assert told.startswith("double stands in the running script")
    assert values == "[2, 4]"


def test_a_function_that_other_processes_can_not_find_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"<lambda> can't be sent to a worker"):
        Dataset.from_list([1]).map(lambda row: row).run(**HERE)


def test_worker_killed_in_a_shard_costs_one_death_and_leaves_no_partial_file(any_runner, tmp_path):
    data = Dataset.files(write_shards(tmp_path, marks=str(tmp_path / "died"))).map(functions.killed_once)
    with any_runner(2) as runner:
        result = data.write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl").run(runner=runner)
        assert runner.deaths == 1
    assert result.counters["records_in"] == result.counters["records_out"] == 120
    shown = [path.name for path in StoragePath(tmp_path / "out").list()]
    assert shown == [".done", "0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_disk_that_fills_up_in_the_middle_of_a_shuffle_is_one_error_and_leaves_no_part(tmp_path):
    data = (
        Dataset.from_list([{"n": 0, "records": 200}] * 2)
        .map(functions.on_a_full_disk)
        .flat_map(functions.many)
    )
    out = data.group_by("key", functions.sizes).write_parquet(f"{tmp_path}/out/{{shard}}.parquet")
    with pytest.raises(StorageError, match=r"arrow could not be written: the disk is full"):
        out.run(on="local")
    assert [path for path in StoragePath(tmp_path).walk() if "pickle" not in path.name] == []


# -- going on -------------------------------------------------------------------------------------------

DRIVER = """if True:
    import sys
    import dataset_functions as functions
    from lmlab.dataflow import Dataset
    data = Dataset.files(sys.argv[1]).map(functions.slow_marked).dedup("id", sort="n", shards=3)
    result = data.write_parquet(sys.argv[2] + "/{shard}.parquet").run()
    print(dict(result.counters))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_driver_goes_on_where_it_was_and_counts_everything(any_runner, tmp_path):
    marks = tmp_path / "marks"
    pattern = write_shards(tmp_path, shards=12, rows=100, marks=str(marks), pause_s=0.5)
    argv = [sys.executable, "-c", DRIVER, pattern]
    driver = subprocess.Popen([*argv, str(tmp_path / "out")])
    deadline = time.monotonic() + 100
    while len(list((tmp_path / "out").glob(".work-*/.done/*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    time.sleep(1)  # on a cluster the tasks that run are still finished
    finished = {path.name for path in (tmp_path / "out").glob(".work-*/.done/*")}
    assert 2 <= len(finished) < 12
    marks.write_text("")
    counters = eval(subprocess.check_output([*argv, str(tmp_path / "out")], text=True))
    read = {int(line) // 100 for line in marks.read_text().split()}
    assert read.isdisjoint({int(name.split(".")[0].split("-")[-1]) for name in finished})
    assert counters["records_in"] == counters["seen"] == 1200
    fresh = eval(subprocess.check_output([*argv, str(tmp_path / "fresh")], text=True))
    assert counters == fresh
    outputs = [sorted(path for path in StoragePath(tmp_path / name).list() if "parquet" in path.name)
               for name in ("out", "fresh")]  # fmt: skip
    assert digest(outputs[0]) == digest(outputs[1])
    assert not list((tmp_path / "out").glob(".work*"))


def test_outputs_may_be_named_by_a_path(tmp_path):
    data = Dataset.from_list([{"n": 1}])
    assert data.write_jsonl(StoragePath(tmp_path / "out" / "{shard}.jsonl")).run(**HERE).outputs
    assert (tmp_path / "out" / "0.jsonl").exists()


def test_a_finished_run_reads_nothing_and_counts_the_same(tmp_path):
    marks = tmp_path / "marks"
    pattern = write_shards(tmp_path, marks=str(marks), pause_s=0)
    data = Dataset.files(pattern).map(functions.slow_marked).dedup("id", shards=2)
    out = data.write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl.gz")
    before = out.run(**HERE).counters
    marks.unlink()
    after = out.run(**HERE).counters
    assert not marks.exists()
    assert {**after, "skipped": 0} == before
    assert after["skipped"] == 2


RESUMED = """if True:
    import sys
    import dataset_functions as functions
    from lmlab.dataflow import Dataset
    data = Dataset.from_list([{"language": "en"}]).filter(functions.is_european).share(stop=set("abcdefgh"))
    result = data.write_jsonl(sys.argv[1] + "/{shard}.jsonl").run(on="local", workers=1)
    sys.stdout.write(str(result.counters["skipped"]))
"""


def test_a_function_with_a_set_in_it_is_the_same_plan_in_another_process(tmp_path):
    skipped = [subprocess.check_output([sys.executable, "-c", RESUMED, tmp_path]) for _ in range(2)]
    assert skipped == [b"0", b"1"]


def test_another_setting_or_body_of_a_callable_object_is_another_plan(tmp_path, monkeypatch):
    def skipped(mark):
        data = Dataset.from_list([{"n": 1}]).map(functions.Marker(mark))
        return data.write_jsonl(f"{tmp_path}/{{shard}}.jsonl").run(**HERE).counters["skipped"]

    assert [skipped("a"), skipped("a"), skipped("b"), skipped("b")] == [0, 1, 0, 1]
    monkeypatch.setattr(functions.Marker, "__call__", lambda self, row: {**row, "other": self.mark})
    assert skipped("b") == 0


def test_what_killed_writers_left_is_removed_by_the_run_that_goes_on(tmp_path):
    (tmp_path / ".0.jsonl.a1b2.unfinished").touch()
    (tmp_path / ".other.jsonl.a1b2.unfinished").touch()
    Dataset.from_list([{"n": 1}]).write_jsonl(f"{tmp_path}/{{shard}}.jsonl").run(**HERE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".done",
        ".other.jsonl.a1b2.unfinished",
        "0.jsonl",
    ]


def test_what_another_plan_or_another_input_left_is_not_taken(tmp_path):
    pattern = write_shards(tmp_path)
    out = f"{tmp_path}/out/{{shard}}.jsonl"
    assert Dataset.files(pattern).write_jsonl(out).run(**HERE).counters["skipped"] == 0
    assert Dataset.files(pattern).write_jsonl(out).run(**HERE).counters["skipped"] == 4
    assert (
        Dataset.files(pattern).map(functions.add_length).write_jsonl(out).run(**HERE).counters["skipped"] == 0
    )
    write_shards(tmp_path, shards=1, rows=5)
    result = Dataset.files(pattern).map(functions.add_length).write_jsonl(out).run(**HERE)
    assert result.counters["skipped"] == 0
    assert result.counters["records_out"] == 95


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_an_output_that_is_not_as_it_was_written_is_made_again(tmp_path, damage):
    data = Dataset.files(write_shards(tmp_path)).write_parquet(f"{tmp_path}/out/{{basename}}.parquet")
    result = data.run(**HERE)
    whole = digest(result.outputs)
    file = tmp_path / "out" / "in-2.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    again = data.run(**HERE)
    assert digest(again.outputs) == whole
    assert again.counters == {**result.counters, "skipped": 3}


# -- outputs --------------------------------------------------------------------------------------------


def test_patterns_under_which_shards_would_collide_are_refused(tmp_path):
    data = Dataset.files(write_shards(tmp_path))
    with pytest.raises(ConfigError, match=r"4 shards would write .*all\.jsonl, one over the other"):
        data.write_jsonl(f"{tmp_path}/all.jsonl").run(**HERE)
    with pytest.raises(ConfigError, match="'index' is not known"):
        data.write_jsonl(f"{tmp_path}/{{index}}.jsonl").run(**HERE)
    with pytest.raises(ConfigError, match="'basename' is not known"):
        data.dedup("id").write_jsonl(f"{tmp_path}/{{basename}}.jsonl").run(**HERE)
    with pytest.raises(ConfigError, match="is read and would be written over"):
        data.write_jsonl(f"{tmp_path}/{{basename}}.jsonl.zst").run(**HERE)
    assert data.reshard(1).write_jsonl(f"{tmp_path}/all.jsonl").run(**HERE).counters["records_out"] == 120


def test_a_function_may_name_the_outputs(tmp_path):
    data = Dataset.from_list([{"n": 1}, {"n": 2}])
    result = data.write_jsonl(lambda shard, total: f"{tmp_path}/{total}/{shard}.jsonl").run(**HERE)
    assert [str(path) for path in result.outputs] == [f"{tmp_path}/2/0.jsonl", f"{tmp_path}/2/1.jsonl"]


def test_shards_that_lack_values_or_are_empty_get_the_schema_of_the_others(tmp_path):
    rows = [{"n": 1, "note": None}, {"n": 2, "note": "x"}, {"n": 3}, {"n": -1, "note": "dropped"}]
    data = Dataset.from_list([[row] for row in rows]).flat_map(list).filter(functions.is_positive)
    out = data.write_parquet(f"{tmp_path}/{{shard}}.parquet")
    result = out.run(**HERE)
    schema = pa.schema([("n", pa.int64()), ("note", pa.large_string())])
    assert [pq.read_schema(path.local).remove_metadata() for path in result.outputs] == [schema] * 4
    assert [read_parquet(path).to_pylist() for path in result.outputs[::3]] == [[{"n": 1, "note": None}], []]
    assert out.run(**HERE).counters["skipped"] == 4


def test_a_column_of_two_types_is_refused_with_file_and_column(tmp_path):
    data = Dataset.from_list([{"n": 1, "x": 1}, {"n": 2, "x": "one"}]).write_parquet(
        f"{tmp_path}/{{shard}}.parquet"
    )
    with pytest.raises(InputError, match=r"1\.parquet differs .*x.*int64"):
        data.run(**HERE)
    mixed = Dataset.from_list([{"x": 1}, {"x": "one"}], shards=1).write_parquet(
        f"{tmp_path}/m/{{shard}}.parquet"
    )
    with pytest.raises(InputError, match="shard 0: column 'x' is not of one type"):
        mixed.run(**HERE)


def test_a_column_that_changes_within_a_shard_is_named_and_one_that_is_null_or_missing_later_is_filled(
    tmp_path,
):
    long = "x" * (5 << 20)
    rows = [{"text": long, "note": "a"}, {"text": long, "note": None}, {"text": "y"}]
    out = f"{tmp_path}/{{shard}}.parquet"
    Dataset.from_list(rows, shards=1).write_parquet(out).run(**HERE)
    assert read_parquet(StoragePath(tmp_path / "0.parquet"))["note"].to_pylist() == ["a", None, None]
    with pytest.raises(InputError, match=r"shard 0: column 'note' is large_string here and null before"):
        Dataset.from_list([rows[1], rows[0]], shards=1).write_parquet(out).run(**HERE)
    with pytest.raises(InputError, match="shard 0: column 'more' is int64 here and absent before"):
        Dataset.from_list([rows[0], {**rows[0], "more": 1}], shards=1).write_parquet(out).run(**HERE)


def test_tables_are_held_to_a_given_schema(tmp_path):
    write_numbers(tmp_path / "a.parquet")
    data = Dataset.files(tmp_path / "a.parquet").map_batches(functions.upper)
    schema = pa.schema([("n", pa.int32()), ("text", pa.large_string())])
    with pytest.raises(InputError, match="column 'n' is int64 here and int32 before or in the schema"):
        data.write_parquet(f"{tmp_path}/out.parquet", schema).run(**HERE)


def test_an_error_of_a_whole_shard_names_it(tmp_path):
    write_numbers(tmp_path / "a.parquet")
    data = Dataset.files(tmp_path / "a.parquet").map_batches(functions.fails_on_tables)
    with pytest.raises(StepFailed, match=r"near it of a\.parquet: ZeroDivisionError"):
        data.run(**HERE)


def test_a_record_may_become_more_than_fits_in_memory(tmp_path):
    data = Dataset.from_list([{"n": 0, "records": 10**12}]).flat_map(functions.many).take_per_shard(3)
    assert len(data.run(**HERE).values) == 3


def test_a_given_schema_is_strict(tmp_path):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.large_string())])

    def write(row):
        Dataset.from_list([row]).write_parquet(f"{tmp_path}/{{shard}}.parquet", schema).run(**HERE)

    write({"n": 1})
    assert read_parquet(StoragePath(tmp_path / "0.parquet")).to_pylist() == [{"n": 1, "text": None}]
    with pytest.raises(InputError, match="column 'url' is not in the schema"):
        write({"n": 1, "url": "x"})
    with pytest.raises(InputError, match="column 'n' is not int64"):
        write({"n": "one"})
    with pytest.raises(InputError, match="column 'n' lacks a value"):
        write({"text": "x"})


# -- workers --------------------------------------------------------------------------------------------


def test_shared_data_is_loaded_once_in_each_worker(any_runner, tmp_path):
    data = Dataset.from_list([{"n": n} for n in range(8)]).share(
        names=functions.Table({n: str(n) for n in range(8)})
    )
    with any_runner(2) as runner:
        found = data.map(functions.looked_up).run(runner=runner, work=StoragePath(tmp_path)).values
    assert [row["name"] for row in found] == [str(n) for n in range(8)]
    assert {row["loaded"] for row in found} == {1}
    with pytest.raises(ConfigError, match="No 'names' is shared"):
        Dataset.from_list([{"n": 0}]).map(functions.looked_up).run(**HERE)


@pytest.mark.slow
def test_stages_have_their_own_resources_and_threads():
    data = Dataset.from_list([{"n": n} for n in range(6)]).map(functions.process)
    assert len({row["pid"] for row in data.run(on="local").values}) == 2
    with open_runner(2, on="local") as runner:
        assert len({row["pid"] for row in data.on(Resources(), threads=2).run(runner=runner).values}) == 1
    with open_runner(2, on="local") as runner:
        wide = data.run(runner=runner, per_shard=Resources(cpu=2)).values
        assert len({row["pid"] for row in wide}) == 1


def test_status_and_live_counters_tell_of_records(tmp_path):
    seen = []
    with open_runner(1, on="local") as runner:
        data = Dataset.files(write_shards(tmp_path)).write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl")
        result = data.run(runner=runner, progress=lambda *_: seen.append(runner.counters["records_in"]))
    assert seen == [30, 60, 90, 120]
    assert "| 1 read to jsonl | 4/4 | 120 |" in result.status


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_key_with_nine_tenths_of_the_bytes_passes_a_worker_of_512_mb(any_runner, tmp_path):
    data = Dataset.from_list([{"n": n, "records": 16_000} for n in range(4)]).flat_map(functions.many)
    out = data.group_by("key", functions.sizes, shards=2).write_parquet(f"{tmp_path}/{{shard}}.parquet")
    with any_runner(2, limits=Limits(memory_bytes=512 << 20)) as runner:
        result = out.run(runner=runner)
        assert runner.deaths == 0
    rows = [row for path in result.outputs for row in read_parquet(path).to_pylist()]
    assert max(row["rows"] for row in rows) == 57_600
    assert result.counters["shuffle_bytes"] > 600e6
    assert json.loads(json.dumps(result.counters))["records_out"] == 6_401
