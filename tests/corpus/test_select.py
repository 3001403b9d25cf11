"""Rules over attributes decide what is kept; edited texts are new documents; the control replays."""

import json

import pyarrow as pa
import pytest

from lmlab.artifacts import Artifact
from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Drop, Keep, RemoveSpans, normalize, repeated_paragraphs, replay, select
from lmlab.corpus.schema import DOCUMENTS, document_id, parts_of
from lmlab.dataflow import read_parquet, write_parquet
from lmlab.storage import Path

TEXTS = [f"text number {i}" for i in range(12)]


@pytest.fixture
def corpus(documents, tmp_path):
    """Twelve documents, and a function that makes attributes of them: a value for each text, or no row."""
    made = documents([("d", f"s{i:02}", text) for i, text in enumerate(TEXTS)])

    def attributes(name, values, column="value", kind=None):
        by_id = {document_id(text): value for text, value in values.items()}
        for part in parts_of(made.path):
            ids = [value for value in read_parquet(part)["id"].to_pylist() if value in by_id]
            values = pa.array([by_id[value] for value in ids], kind)
            write_parquet(
                Path(tmp_path / name / part.name),
                pa.table({"id": pa.array(ids, pa.string()), column: values}),
            )
        return Artifact.at(tmp_path / name)

    return made, attributes


def test_rules_are_applied_in_order_and_each_has_its_stage_and_reasons(corpus, out, rows_of):
    made, attributes = corpus
    bad = attributes(
        "bad", {t: "spam: says so" if i < 3 else None for i, t in enumerate(TEXTS)}, "reason", pa.string()
    )
    score = attributes("score", {t: i / 10 for i, t in enumerate(TEXTS)}, "score")
    rules = (Drop("spam", bad), Keep("quality", score, "score", at_least=0.5))
    kept = select.body(out(), made, rules, workers=2)
    assert {row["text"] for row in rows_of(out().path)} == set(TEXTS[5:])
    assert (kept.documents, kept.size_bytes) == (7, sum(map(len, TEXTS[5:])))
    assert {row["source_id"]: row["reason"] for row in rows_of(out().path / "rejected" / "spam")} == {
        f"s{i:02}": "spam: says so" for i in range(3)
    }
    assert {row["reason"] for row in rows_of(out().path / "rejected" / "quality")} == {
        "score below 0.5: 0.3", "score below 0.5: 0.4",
    }  # fmt: skip
    stages = json.loads((out().path / "stages.json").read_text())["stages"]
    assert [(row["stage"], row["documents_in"], row["dropped"]) for row in stages] == [
        ("spam", 12, {"spam": 3}), ("quality", 9, {"score below 0.5": 2}),
    ]  # fmt: skip
    names = [[path.name for path in parts_of(folder)] for folder in (made.path, out().path)]
    assert names[0] == names[1]


def test_document_without_attributes_is_rejected_unless_the_rule_keeps_it(corpus, out, rows_of):
    made, attributes = corpus
    label = attributes("label", dict.fromkeys(TEXTS[:4], "en"))
    select.body(out("a"), made, (Keep("english", label, "value", among=("en", "de")),), workers=1)
    assert {row["text"] for row in rows_of(out("a").path)} == set(TEXTS[:4])
    assert {row["reason"] for row in rows_of(out("a").path / "rejected" / "english")} == {
        "no attribute: label has no row for it"
    }
    rule = Keep("english", label, "value", among=("en",), keep_if_missing=True)
    assert select.body(out("b"), made, (rule,), workers=1).documents == 12


@pytest.mark.parametrize("yes", [True, 1, 0.5, "why"])
@pytest.mark.parametrize("column", ["value", "reason"])
def test_true_values_drop_and_false_ones_do_not(corpus, out, yes, column):
    made, attributes = corpus
    flags = attributes("flags", {text: yes if i < 4 else type(yes)() for i, text in enumerate(TEXTS)}, column)
    assert select.body(out(), made, (Drop("flag", flags, column),), workers=1).documents == 8


def test_missing_column_and_wrong_spans_are_named(corpus, out):
    made, attributes = corpus
    flags = attributes("flags", dict.fromkeys(TEXTS, True))
    with pytest.raises(InputError, match=r"flags/part\S+ has no column 'reason', only id, value\."):
        select.body(out(), made, (Drop("flag", flags),), workers=1)
    spans = attributes("spans", {text: [{"start": 3, "end": 99}] for text in TEXTS}, "spans")
    with pytest.raises(InputError, match=r"The spans .* do not lie in order in a text of 1\d bytes"):
        select.body(out(), made, (RemoveSpans("cut", spans),), workers=1)


def test_column_of_another_kind_is_named_in_one_line(corpus, out):
    made, attributes = corpus
    named = attributes("named", dict.fromkeys(TEXTS, "prose"))
    for rule in (Keep("fine", named, "value", at_least=0.5), RemoveSpans("fine", named, "value")):
        with pytest.raises(InputError, match=r"named holds string in 'value', by which 'fine' can't be dec"):
            select.body(out(), made, (rule,), workers=1)


def test_rules_of_one_name_would_overwrite_what_the_other_rejects(corpus, out):
    made, attributes = corpus
    flag = Drop("same", attributes("flags", dict.fromkeys(TEXTS, True)), "value")
    with pytest.raises(
        ConfigError, match=r"The rules are 'same', 'same': what each rejects goes to a folder"
    ):
        select.body(out(), made, (flag, flag), workers=1)
    with pytest.raises(ConfigError, match="The rules are none"):
        select.body(out(), made, (), workers=1)


def test_spans_of_several_rules_are_all_places_in_the_text_as_it_was(corpus, out, rows_of):
    made, attributes = corpus  # "text number 0"
    first = attributes("first", {text: [{"start": 0, "end": 5}] for text in TEXTS}, "spans")
    spans = [{"start": 3, "end": 6, "replacement": "?"}, {"start": 12, "end": 14, "replacement": "<N>"}]
    then = attributes("then", dict.fromkeys(TEXTS[10:], spans), "spans")
    rules = (RemoveSpans("a", first), RemoveSpans("b", then, keep_if_missing=True))
    select.body(out(), made, rules, workers=1)
    found = {row["text"] for row in rows_of(out().path)}
    assert found == {f"number {i}" for i in range(10)} | {"umber <N>"}


def test_replacement_of_the_same_length_is_an_edit_too(corpus, out):
    made, attributes = corpus
    spans = {text: [{"start": 0, "end": 4, "replacement": "TEXT"}] for text in TEXTS[:5]}
    rule = RemoveSpans("names", attributes("spans", spans, "spans"), keep_if_missing=True)
    select.body(out(), made, (rule,), workers=1)
    assert json.loads((out().path / "stages.json").read_text())["stages"][0]["edited"] == 5


HEADER = (
    "This header of one hundred bytes stands in many of the documents, as licences do: größer als nichts."
)


@pytest.fixture
def headed(documents):
    """Two corpora whose documents mostly begin with the same paragraph."""
    texts = [f"{HEADER}\n\n{i} is what this one says." for i in range(8)] + ["No header here.\n\nEnd."]
    return {
        "a": documents([("d", f"a{i}", text) for i, text in enumerate(texts)], 2, "a"),
        "b": documents([("d", f"b{i}", text + " Or not.") for i, text in enumerate(texts)], 3, "b"),
    }


def test_repeated_paragraph_is_left_in_the_smallest_id_of_all_corpora(headed, out, rows_of):
    found = repeated_paragraphs.body(out("spans"), headed, min_bytes=50, workers=2)
    size = len(HEADER.encode()) + 2
    assert (found.documents, found.repeats, found.repeated_bytes) == (18, 15, 15 * size)
    texts, spans = {}, {}
    for name, corpus in headed.items():
        texts |= {row["id"]: row["text"] for row in rows_of(corpus.path)}
        spans |= {row["id"]: row["spans"] for row in rows_of(out("spans").path / name)}
    first = min(name for name, text in texts.items() if text.startswith(HEADER))
    for name, text in texts.items():
        expected = [{"start": 0, "end": size}] if text.startswith(HEADER) and name != first else []
        assert spans[name] == expected


def test_refrain_is_left_where_it_stands_first_in_its_own_text_too(documents, out, rows_of):
    made = documents([("d", "song", f"{HEADER}\n\nA verse.\n\n{HEADER}\n\nThe end.")], 1)
    repeated_paragraphs.body(out("spans"), made, min_bytes=50, workers=1)
    select.body(out("kept"), made, (RemoveSpans("cut", Artifact.at(out("spans").path)),), workers=1)
    assert [row["text"] for row in rows_of(out("kept").path)] == [f"{HEADER}\n\nA verse.\n\nThe end."]


def test_documents_that_another_tool_wrote_are_measured_as_ours(corpus, out, tmp_path):
    """Its text is a `string`, whose offsets have half the width of ours."""
    made, attributes = corpus
    for part in parts_of(made.path):
        plain = read_parquet(part).cast(pa.schema([(name, pa.string()) for name in DOCUMENTS.names]))
        write_parquet(Path(tmp_path / "plain" / part.name), plain)
    flags = attributes("flags", {text: i < 4 for i, text in enumerate(TEXTS)})
    kept = select.body(out(), Artifact.at(tmp_path / "plain"), (Drop("flag", flags, "value"),), workers=1)
    assert (kept.documents, kept.size_bytes) == (8, sum(map(len, TEXTS[4:])))


def test_edited_documents_get_new_ids_and_places_and_meet_their_equals(headed, out, rows_of):
    both = normalize.body(out("both"), tuple(headed.values()), workers=1)
    whole = Artifact.at(out("both").path)
    repeated_paragraphs.body(out("spans"), whole, min_bytes=50, workers=1)
    rule = RemoveSpans("paragraphs", Artifact.at(out("spans").path))
    kept = select.body(out("kept"), whole, (rule,), workers=1)
    rows = rows_of(out("kept").path)
    assert both.documents == kept.documents == len(rows) == 18
    assert all(row["id"] == document_id(row["text"]) for row in rows)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert sum(HEADER in row["text"] for row in rows) == 1
    stages = json.loads((out("kept").path / "stages.json").read_text())["stages"]
    assert [(row["stage"], row["edited"]) for row in stages[-3:]] == [
        ("paragraphs", 15),
        ("normalize", 0),
        ("exact", 0),
    ]
    assert stages[-3]["bytes_in"] - stages[-1]["bytes_out"] == 15 * (len(HEADER.encode()) + 2)


def test_document_of_which_nothing_is_left_is_rejected(documents, out, rows_of):
    made = documents([("d", "a", HEADER), ("d", "b", HEADER + "\n\n" + "more")], 1)
    repeated_paragraphs.body(out("spans"), made, min_bytes=50, workers=1)
    rule = RemoveSpans("paragraphs", Artifact.at(out("spans").path))
    select.body(out("kept"), made, (rule,), workers=1)
    rows = rows_of(out("kept").path) + rows_of(out("kept").path / "rejected" / "paragraphs")
    assert sorted((row["text"], row.get("reason")) for row in rows) in (
        [(HEADER, None), ("more", None)],
        [(HEADER, "nothing left: all of it was cut"), (HEADER + "\n\nmore", None)],
    )


@pytest.mark.parametrize(
    ("documents_in", "share", "kept"), [(7, 0.5, 4), (12, 0.5, 6), (100, 0.29, 71), (5, 0.0, 5), (10, 0.7, 3)]
)
def test_negative_control_replays_the_first_documents_to_as_many_as_before(
    documents, out, rows_of, documents_in, share, kept
):
    made = documents([("d", str(i), f"text {i}") for i in range(documents_in)], 2)
    before = [row["id"] for row in rows_of(made.path)]
    assert replay.body(out(), made, share, workers=1).documents == documents_in
    after = [row["id"] for row in rows_of(out().path)]
    assert after == sorted((before[:kept] * documents_in)[:documents_in])


def test_nothing_can_be_replayed_of_nothing(documents, out):
    with pytest.raises(ConfigError, match=r"share=1.0 of the documents can't be left out"):
        replay.body(out(), documents([("d", "a", "x")]), 1.0, workers=1)
