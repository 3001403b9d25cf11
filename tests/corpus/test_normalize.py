"""Rows of any shape become documents: ids from the final text, gaps cut and counted, equal texts once."""

import json

import pyarrow as pa
import pytest

from lmlab.artifacts import Artifact
from lmlab.core.errors import InputError
from lmlab.corpus import Normalization, normalize, normalizing
from lmlab.corpus.schema import document_id, part_name, part_of
from lmlab.dataflow import write_jsonl, write_parquet
from lmlab.storage import Path


@pytest.fixture
def source(tmp_path):
    """A source of one file, from rows or a table."""

    def make(name, rows):
        file = Path(tmp_path / name / ("a.parquet" if isinstance(rows, pa.Table) else "a.jsonl.zst"))
        (write_parquet if isinstance(rows, pa.Table) else write_jsonl)(file, rows)
        return Artifact.at(tmp_path / name)

    return make


def test_other_columns_go_into_meta_and_the_id_is_kept_as_source(source, out, rows_of):
    rows = [{"text": "Grüße", "id": 7, "lang": "de", "n": {"b": 1, "a": None}}]
    normalize.body(out(), source("raw", rows), workers=1)
    (row,) = rows_of(out().path)
    assert row == {
        "id": document_id("Grüße"),
        "text": "Grüße",
        "source_id": "7",
        "meta": '{"lang":"de","n":{"a":null,"b":1}}',
    }


def test_bare_drops_other_columns_so_that_sources_of_different_columns_fit(source, out, rows_of):
    sources = (
        source("a", [{"text": "one", "x": 1}]),
        source("b", pa.table({"text": [b"two \xff"], "y": [2.5]})),
    )
    normalize.body(out(), sources, Normalization(bare=True), workers=1)
    rows = {row["text"]: row for row in rows_of(out().path)}
    assert set(rows) == {"one", "two �"}  # bytes are decoded, what is no UTF-8 replaced
    assert {row["meta"] for row in rows.values()} == {"{}"}
    assert rows["one"]["source_id"] == "a.jsonl.zst:0"


def test_of_equal_texts_of_several_sources_the_first_by_source_is_kept(source, out, rows_of):
    sources = (source("b", [{"text": "same", "id": "b1"}]), source("a", [{"text": "same", "id": "a1"}]))
    made = normalize.body(out(), sources, workers=1)
    assert (made.documents, made.size_bytes) == (1, 4)
    assert [row["source_id"] for row in rows_of(out().path)] == ["a1"]
    (repeat,) = rows_of(out().path / "rejected" / "exact")
    assert (repeat["source_id"], repeat["reason"]) == ("b1", "exact duplicate: of a1")


def test_equal_texts_stay_where_they_are_wanted(source, out, rows_of):
    raw = source("raw", [{"text": "same"}] * 3)
    assert normalize.body(out(), raw, Normalization(exact=False), workers=1).documents == 3
    assert len(rows_of(out().path)) == 3


def test_parts_are_of_the_wanted_size_and_sorted_and_hold_their_range_of_ids(source, out, rows_of):
    raw = source("raw", [{"text": f"document number {i} " + "x" * 1000} for i in range(400)])
    normalize.body(out(), raw, Normalization(part_bytes=1000), workers=2)
    names = [path.name for path in out().path.list() if path.name.startswith("part-")]
    assert len(names) > 3
    assert names == [part_name(i, len(names)) for i in range(len(names))]
    ids = [row["id"] for row in rows_of(out().path)]
    assert ids == sorted(ids)
    assert len(ids) == 400
    assert (part_of(ids, len(names))[:-1] <= part_of(ids, len(names))[1:]).all()


@pytest.mark.parametrize("gap", [" ", "\n", "\u3000", "\u2003", "\xa0 ", "\r\n\t"])
def test_any_whitespace_bomb_is_cut_and_counted(source, out, rows_of, gap):
    texts = ["a" + gap * 200 + "b", "a" + gap * (128 // len(gap)) + "c", "kana かなかな" * 100]
    normalize.body(out(), source("raw", [{"text": text} for text in texts]), workers=1)
    found = {row["text"] for row in rows_of(out().path)}
    assert found == {"a" + (gap * 200)[:128] + "b", *texts[1:]}
    (stage, exact) = json.loads((out().path / "stages.json").read_text())["stages"]
    assert stage["edited"] == 1
    assert stage["bytes_in"] - stage["bytes_out"] == len((gap * 200)[128:].encode())
    assert exact["bytes_in"] == stage["bytes_out"]


def test_blank_and_missing_texts_are_rejected_with_their_source(source, out, rows_of):
    raw = source("raw", [{"text": ""}, {"text": None}, {"text": " \n\u3000" * 500}, {"text": "x"}])
    assert normalize.body(out(), raw, workers=1).documents == 1
    assert {row["reason"] for row in rows_of(out().path / "rejected" / "normalize")} == {"blank"}
    assert len(rows_of(out().path / "rejected" / "normalize")) == 3


@pytest.mark.parametrize("row", [{"body": "x"}, {"text": 5}, ["text"], "text"])
def test_row_without_text_is_named(source, out, row):
    with pytest.raises(
        InputError, match=r"/raw/a.jsonl.zst: row 1 has no text but .* so it can't be a document"
    ):
        normalize.body(out(), source("raw", [{"text": "fine"}, row]), workers=1)


@pytest.mark.slow
def test_documents_of_64_mib_and_of_100_mb_of_blanks(source, out, rows_of):
    texts = ["word " * (64 << 18) + "end", "a" + " " * 100_000_000 + "b", " " * 100_000_000, "x"]
    normalize.body(out(), source("raw", pa.table({"text": pa.array(texts, pa.large_string())})), workers=1)
    assert {len(row["text"]) for row in rows_of(out().path)} == {len(texts[0]), 130, 1}


@pytest.mark.parametrize("name", ["part-00000-3f2a-c000.snappy.parquet", "part-0.parquet"])
def test_files_that_spark_and_pyarrow_name_parts_are_read_as_any_other(tmp_path, out, name):
    write_parquet(Path(tmp_path / "raw" / name), pa.table({"text": ["one", "two"]}))
    assert normalize.body(out(), Artifact.at(tmp_path / "raw"), workers=1).documents == 2


def test_rows_without_a_name_are_told_apart_in_every_file_and_part_of_it(tmp_path, out, rows_of):
    for name in ("de", "en"):
        rows = pa.table({"text": [f"{name} {i}" for i in range(250)], "id": pa.nulls(250, pa.string())})
        write_parquet(Path(tmp_path / "raw" / name / "a.parquet"), rows)
        write_jsonl(Path(tmp_path / "raw" / name / "b.jsonl"), ({"text": f"{name} b{i}"} for i in range(250)))
    normalize.body(out(), Artifact.at(tmp_path / "raw"), workers=1)
    rows = rows_of(out().path)
    assert len({row["source_id"] for row in rows}) == len(rows) == 1000
    assert {row["source_id"] for row in rows if row["text"] == "de b249"} == {"de/b.jsonl:249"}


def test_documents_that_another_tool_wrote_again_keep_their_meta(source, out, rows_of):
    columns = {
        "meta": ['{"domain":"code"}', None],
        "text": ["x", None],
        "id": ["1", "2"],
        "source_id": ["a", "b"],
    }
    normalize.body(out(), source("raw", pa.table(columns)), workers=1)
    (row,) = rows_of(out().path)
    assert (row["source_id"], row["meta"]) == ("a", '{"domain":"code"}')


def test_raw_parquet_takes_the_memory_of_some_rows_not_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(normalizing, "ROUND_BYTES", 4 << 20)
    file = Path(tmp_path / "a.parquet")
    write_parquet(file, pa.table({"text": [f"{i:06} " * 1000 for i in range(10_000)], "n": range(10_000)}))
    held = pa.total_allocated_bytes()
    rounds = normalizing._rounds(file, "a", bare=False)
    most = max(pa.total_allocated_bytes() - held for _ in rounds)
    assert most < 35e6, "of a file of 70 MB, in row groups of 16 MB"
