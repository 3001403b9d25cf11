"""Attributes: co-partitioned with their documents, resumed by part, joined by a merge that checks ids."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lmlab.core.errors import InputError
from lmlab.corpus.attributes import Parts, annotate, mark, read_attribute
from lmlab.corpus.schema import parts_of
from lmlab.dataflow import Workers, read_parquet
from lmlab.storage import Path

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("letters", pa.int64())])
ROWS = [("prose", f"s/{i}", f"text number {i} {'x' * i}") for i in range(50)]


def letters(table, factor):
    return pa.table({"id": table.column("id"), "letters": pc.multiply(pc.utf8_length(table["text"]), factor)})


def reversed_letters(table, factor):
    return letters(table.take(list(range(table.num_rows))[::-1]), factor)


def say(*_):
    pass


def run(documents, out, function=letters, factor=1):
    with Workers(1) as runner:
        return annotate(documents, out, function, SCHEMA, runner, name="letters", say=say, settings=factor)


def test_attributes_have_the_names_and_rows_of_their_documents(documents, tmp_path):
    made, out = documents(ROWS, parts=3).path, Path(tmp_path / "letters")
    assert run(made, out) == 50
    assert [p.name for p in out.list()] == [p.name for p in parts_of(made)]
    for part in parts_of(made):
        table, found = read_parquet(part), read_parquet(out / part.name)
        assert found["id"].to_pylist() == table["id"].to_pylist()
        assert found["letters"].to_pylist() == [len(text) for text in table["text"].to_pylist()]


def test_a_finished_part_is_not_made_again_and_a_lost_one_is(documents, tmp_path):
    made, out = documents(ROWS, parts=3).path, Path(tmp_path / "letters")
    run(made, out)
    names = [p.name for p in out.list()]
    (out / names[1]).remove()
    assert run(made, out, factor=1000) == 50
    smallest = [min(read_parquet(out / name)["letters"].to_pylist()) for name in names]
    assert [value >= 1000 for value in smallest] == [False, True, False]


def test_function_that_answers_for_other_rows_is_refused(documents, tmp_path):
    with pytest.raises(InputError, match=r"reversed_letters answered for .* not its 50 documents in order"):
        run(documents(ROWS, parts=1).path, Path(tmp_path / "letters"), reversed_letters)


def test_kept_documents_get_their_own_rows_and_strangers_are_named(documents, tmp_path):
    made, out = documents(ROWS, parts=1).path, Path(tmp_path / "letters")
    run(made, out)
    (part,) = parts_of(made)
    kept = read_parquet(part).slice(5, 20)
    found = read_attribute(out, part.name, "letters", kept["id"])
    assert found["letters"].to_pylist() == [len(text) for text in kept["text"].to_pylist()]
    ids = pa.chunked_array([[*kept["id"].to_pylist()[:2], "0" * 32]])
    with pytest.raises(InputError, match="no row for 1 of 3 documents, the first 00000"):
        read_attribute(out, part.name, "letters", ids)
    found = read_attribute(out, part.name, "letters", ids, may_miss=True)
    assert found["letters"].is_null().to_pylist() == [False, False, True]


def test_what_marks_one_part_does_not_travel_with_what_marks_the_others(documents, tmp_path):
    """Slices of Arrow tables are pickled with all that is behind them: 1,000 parts sent it 1,000 times."""
    parts = Parts({"": documents(ROWS, parts=4).path})
    sent = []

    class Recorder(Workers):
        def run(self, function, tasks, **how):
            sent.extend(len(pickle.dumps(task)) for task in tasks)
            return super().run(function, tasks, **how)

    rows = np.arange(0, 50, 2)
    values = pa.table({"reason": ["r" * 10_000] * len(rows)})
    with Recorder(1) as runner:
        mark(parts, Path(tmp_path / "marks"), rows, values, runner)
    assert sum(sent) < 1.2 * values.nbytes
    made = [read_parquet(path)["reason"] for path in parts.in_folder(Path(tmp_path / "marks"))]
    assert [reason is not None for column in made for reason in column.to_pylist()] == [
        i % 2 == 0 for i in range(50)
    ]
