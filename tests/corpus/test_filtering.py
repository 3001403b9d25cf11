"""A rule of one's own drops documents, keeps them beside the others, and stands in the table of stages."""

import json

import pytest
from sample_archives import prose

from lmlab.corpus import Documents, Holdout, curate, filter_documents
from lmlab.dataflow import RecordFailed


def too_few_words(text, meta):
    count = len(text.split())
    return f"too few words: {count}" if meta["domain"] == "prose" and count < 100 else ""


def test_documents_that_break_the_rule_are_kept_apart_with_their_reason(documents, out, enough, rows_of):
    made = documents([*enough, ("prose", "short", prose(5000, 20)), ("code", "short code", prose(5001, 20))])
    stage = filter_documents(made.path, out().path, "words", too_few_words)
    (rejected,) = rows_of(out().path / "rejected" / "words")
    assert (rejected["source_id"], rejected["reason"]) == ("short", "too few words: 20")
    assert stage.dropped == {"too few words": 1}
    assert len(rows_of(out().path)) == stage.documents_out == 81


def test_filtered_documents_are_curated_and_the_filter_is_in_the_table(documents, out, enough):
    made = documents([*enough, ("prose", "short", prose(5000, 20))])
    stage = filter_documents(made.path, out("kept").path, "words", too_few_words)
    kept = Documents.at(out("kept").path, documents=stage.documents_out, size_bytes=stage.bytes_out)
    curate.body(out(), kept, holdout=Holdout(min_bytes=4_000), workers=1)
    stages = json.loads((out().path / "stages.json").read_text())["stages"]
    assert [row["stage"] for row in stages[:2]] == ["words", "normalize"]
    assert stages[0]["documents_out"] == stages[1]["documents_in"] == 80


def test_rule_that_fails_names_the_document(documents, out, enough):
    with pytest.raises(RecordFailed, match=r"record 0 \((code|prose)/\d+\): KeyError: 'language'"):
        filter_documents(documents(enough).path, out().path, "x", lambda _text, meta: meta["language"])
