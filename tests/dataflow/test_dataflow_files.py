"""Files of tasks: equal content gives equal bytes, and a broken file is refused by name and place."""

import gzip
import logging
import resource

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings, strategies as st
from parquet_pages import with_long_statistics

from lmlab.core.errors import InputError
from lmlab.dataflow import Workers, files, read_jsonl, read_parquet, write_jsonl, write_parquet
from lmlab.dataflow.files import read_batches
from lmlab.storage import Path

TABLE = pa.table({"id": ["a", "b"], "text": pa.array(["one", "two " * 1000], pa.large_string())})


def test_parquet_round_trip_is_byte_identical_and_reads_columns(tmp_path):
    for name in ("one", "two"):
        write_parquet(Path(tmp_path / name), TABLE)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read_parquet(Path(tmp_path / "one")).equals(TABLE)
    assert read_parquet(Path(tmp_path / "one"), ["text"]).column_names == ["text"]


def test_long_texts_stay_out_of_the_statistics_and_row_groups_stay_small(tmp_path):
    long = pa.table({"id": [f"{i:02}" for i in range(12)], "text": pa.array(["x" * (4 << 20)] * 12)})
    write_parquet(Path(tmp_path / "long"), long)
    metadata = pq.ParquetFile(tmp_path / "long").metadata
    assert metadata.num_row_groups >= 3
    statistics = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i).statistics
                  for i in range(2)}  # fmt: skip
    assert statistics["text"] is None
    assert statistics["id"] is not None


@pytest.mark.parametrize("cut", [0, 3, 200, -1])
def test_cut_parquet_file_is_an_input_error_naming_it(tmp_path, cut):
    write_parquet(Path(tmp_path / "whole.parquet"), TABLE)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cut\.parquet can't be read as Parquet"):
        read_parquet(Path(tmp_path / "cut.parquet"))


def test_missing_column_is_named(tmp_path):
    write_parquet(Path(tmp_path / "t.parquet"), TABLE)
    with pytest.raises(InputError, match="no column 'url', only id, text"):
        read_parquet(Path(tmp_path / "t.parquet"), ["url"])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(0, 9) | st.none())),
    suffix=st.sampled_from(["", ".zst", ".gz"]),
)
def test_jsonl_round_trip(tmp_path_factory, rows, suffix):
    folder = tmp_path_factory.mktemp("rows")
    for name in ("one", "two"):
        assert write_jsonl(Path(folder / f"{name}.jsonl{suffix}"), rows) == len(rows)
    assert list(read_jsonl(Path(folder / f"one.jsonl{suffix}"))) == rows
    assert (folder / f"one.jsonl{suffix}").read_bytes() == (folder / f"two.jsonl{suffix}").read_bytes()


def test_broken_last_line_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    rows = read_jsonl(Path(tmp_path / "rows.jsonl"))
    assert [next(rows), next(rows)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(InputError, match=r"rows\.jsonl, line 3, can't be read"):
        next(rows)


@pytest.mark.parametrize("suffix", ["zst", "gz"])
def test_compressed_file_is_refused_wherever_it_is_cut(tmp_path, suffix):
    write_jsonl(Path(tmp_path / f"rows.jsonl.{suffix}"), ({"n": n, "text": str(n) * 50} for n in range(2000)))
    whole = (tmp_path / f"rows.jsonl.{suffix}").read_bytes()
    for cut in (1, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / f"cut.jsonl.{suffix}").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=rf"cut\.jsonl\.{suffix}, line \d+"):
            list(read_jsonl(Path(tmp_path / f"cut.jsonl.{suffix}")))


def test_several_compressed_frames_are_read_as_one(tmp_path):
    frames = b"".join(zstandard.compress(b'{"n": %d}\n' % n) for n in range(3))
    (tmp_path / "rows.jsonl.zst").write_bytes(frames)
    assert list(read_jsonl(Path(tmp_path / "rows.jsonl.zst"))) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "x"}\n{"a": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2, can't be read"):
        list(read_jsonl(Path(tmp_path / "rows.jsonl")))


@pytest.mark.parametrize(
    "pack", [zstandard.ZstdCompressor(level=1).compress, lambda raw: gzip.compress(raw, 1)]
)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_fills_the_memory(
    tmp_path, monkeypatch, pack
):
    monkeypatch.setattr(files, "LONGEST_LINE_BYTES", 64 << 20)
    name = "bomb.jsonl.gz" if pack(b"")[:2] == b"\x1f\x8b" else "bomb.jsonl.zst"
    (tmp_path / name).write_bytes(pack(b'"' + b"x" * (256 << 20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        InputError, match=r"bomb.*line 1, can't be read \(a line is longer than 67,108,864 bytes\)"
    ):
        list(read_jsonl(Path(tmp_path / name)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 160 << 20


def test_batches_are_small_columns_and_rows_are_chosen_and_rows_stay_in_order(tmp_path):
    table = pa.table({"n": range(800), "text": pa.array(["x" * 50_000] * 800, pa.large_string())})
    write_parquet(Path(tmp_path / "t.parquet"), table)
    batches = list(read_batches(Path(tmp_path / "t.parquet")))
    assert max(batch.nbytes for batch in batches) < 2 << 20
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(800))
    groups = pq.ParquetFile(tmp_path / "t.parquet").num_row_groups
    assert groups == 2
    last = [
        n for b in read_batches(Path(tmp_path / "t.parquet"), ["n"], None, [1]) for n in b["n"].to_pylist()
    ]
    assert last == list(range(400, 800))
    some = pa.Table.from_batches(read_batches(Path(tmp_path / "t.parquet"), ["n"], pc.field("n") > 797))
    assert some.to_pydict() == {"n": [798, 799]}


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [4 << 20, 9 << 20, 20 << 20, 64 << 20])
@pytest.mark.parametrize("writer", ["lmlab", "pyarrow", "polars", "duckdb"])
def test_values_of_many_megabytes_from_any_writer_are_read_by_all_readers(tmp_path, writer, size_bytes):
    path = tmp_path / "long.parquet"
    values = ["a" * size_bytes, "short", "b" * size_bytes]
    table = pa.table({"value": pa.array(values, pa.large_string())})
    if writer == "lmlab":
        write_parquet(Path(path), table)
    elif writer == "pyarrow":
        pq.write_table(table, path)
    elif writer == "polars":
        pl.from_arrow(table).write_parquet(path, statistics="full")
    else:
        duckdb.from_arrow(table).write_parquet(str(path))
    assert read_parquet(Path(path))["value"].to_pylist() == values
    assert [v for batch in read_batches(Path(path)) for v in batch["value"].to_pylist()] == values
    assert pl.read_parquet(path)["value"].to_list() == values
    assert [row[0] for row in duckdb.read_parquet(str(path)).fetchall()] == values


def read_long(path: str) -> int:
    return read_parquet(Path(path)).num_rows + sum(batch.num_rows for batch in read_batches(Path(path)))


def test_a_page_that_pyarrow_refuses_is_read_by_duckdb_logged_and_counted(tmp_path, caplog):
    table = pa.table({"text": pa.array([f"row {n}" for n in range(50)], pa.large_string())})
    path = Path(tmp_path / "header.parquet")
    path.write_bytes(with_long_statistics(table, 4 << 20))
    assert pq.read_table(path.local).equals(table)
    path.write_bytes(with_long_statistics(table, 9 << 20))
    with pytest.raises(OSError, match="deserialize thrift"):
        pq.read_table(path.local)
    with Workers(1) as workers, caplog.at_level(logging.WARNING):
        assert workers.run(read_long, [str(path)], name="read") == [100]
        assert workers.counters["parquet_read_by_duckdb"] == 2
    assert "header.parquet: Couldn't deserialize thrift" in caplog.text
    assert read_parquet(path).equals(table)
