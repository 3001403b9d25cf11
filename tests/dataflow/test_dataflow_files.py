"""Files of tasks: equal content gives equal bytes, and a broken file is refused by name and place."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import InputError
from lmlab.dataflow import read_jsonl, read_parquet, write_jsonl, write_parquet
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
    rows=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(0, 9) | st.none()))
)
def test_jsonl_round_trip(tmp_path_factory, rows):
    path = Path(tmp_path_factory.mktemp("rows") / "rows.jsonl.zst")
    assert write_jsonl(path, rows) == len(rows)
    assert list(read_jsonl(path)) == rows


def test_broken_last_line_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    rows = read_jsonl(Path(tmp_path / "rows.jsonl"))
    assert [next(rows), next(rows)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(InputError, match=r"rows\.jsonl, line 3, can't be read"):
        next(rows)


def test_compressed_file_is_refused_wherever_it_is_cut(tmp_path):
    write_jsonl(Path(tmp_path / "rows.jsonl.zst"), ({"n": n, "text": str(n) * 50} for n in range(2000)))
    whole = (tmp_path / "rows.jsonl.zst").read_bytes()
    for cut in (1, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.jsonl.zst").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"cut\.jsonl\.zst, line \d+"):
            list(read_jsonl(Path(tmp_path / "cut.jsonl.zst")))


def test_several_compressed_frames_are_read_as_one(tmp_path):
    frames = b"".join(zstandard.compress(b'{"n": %d}\n' % n) for n in range(3))
    (tmp_path / "rows.jsonl.zst").write_bytes(frames)
    assert list(read_jsonl(Path(tmp_path / "rows.jsonl.zst"))) == [{"n": 0}, {"n": 1}, {"n": 2}]
