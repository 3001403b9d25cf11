"""Personal data and secrets are found, what only looks like them is not, and the rest stays as it is."""

import string
import sysconfig
import time
from pathlib import Path as LocalPath

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from planted import HARMLESS, PERSONAL
from sample_archives import prose

from lmlab.corpus import Attributes, RemoveSpans, redact, select
from lmlab.corpus.traits.config import KINDS
from lmlab.corpus.traits.redact import find_spans, spans_of


def found(text, kinds=KINDS):
    data = text.encode()
    return [(s["kind"], data[s["start"] : s["end"]].decode()) for s in spans_of(data, kinds)]


def test_everything_planted_in_prose_is_found_and_nothing_else():
    planted = [(kind, value) for kind, values in PERSONAL.items() for value in values]
    for seed, (kind, value) in enumerate(planted):
        text = f"{prose(seed, 50)} é {value}, {prose(seed + 100, 50)}"
        assert found(text) == [(kind, value)]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_personal_is_left_alone(text):
    assert found(f"see {text} there") == []


@pytest.mark.parametrize(
    "line",
    ["API_KEY = 'q8Zk2vXp0LmT7wYs4RbN'", "token: q8Zk2vXp0LmT7wYs4RbN", '"secret" : "q8Zk2vXp0LmT7wYs4RbN"'],
)
def test_a_random_value_given_to_a_key_is_a_secret(line):
    assert found(line) == [("secret", "q8Zk2vXp0LmT7wYs4RbN")]
    assert (
        found(line.replace("API_KEY", "digest").replace("token", "digest").replace("secret", "digest")) == []
    )


def test_a_value_has_one_pseudonym_in_a_document_however_it_is_written():
    spans = spans_of(b"Ada@Lovelace.org, bob@x.org, ada@lovelace.org; 212-555-0199 or 212.555.0199", KINDS)
    assert [span["replacement"] for span in spans] == [
        "<EMAIL_1>", "<EMAIL_2>", "<EMAIL_1>", "<PHONE_1>", "<PHONE_1>",
    ]  # fmt: skip


def test_only_the_kinds_asked_for_are_found():
    assert found("ada@lovelace.org 078-05-1120", ("ssn",)) == [("ssn", "078-05-1120")]


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=string.printable + "é日@.-+0123456789ab", max_size=400))
def test_spans_lie_in_order_within_any_text(text):
    spans = spans_of(text.encode(), KINDS)
    edges = [edge for span in spans for edge in (span["start"], span["end"])]
    assert edges == sorted(edges)
    assert all(0 <= span["start"] < span["end"] <= len(text.encode()) for span in spans)


@pytest.mark.parametrize(
    "bomb", ["@", "a@", "1", "1 ", "(1)", "=", "A1", "eyJa.", "-----BEGIN PRIVATE KEY-----", "+0"]
)
def test_no_text_makes_the_patterns_slow(bomb):
    start = time.process_time()
    spans_of((bomb * 100_000)[:100_000].encode(), KINDS)
    assert time.process_time() - start < 1.5


def test_redacted_documents_read_on_and_have_new_ids(documents, out, rows_of):
    given_documents = documents(
        [("mail", "a", f"write to ada@lovelace.org. {prose(1, 40)}"), ("mail", "b", prose(2, 40))]
    )
    made = out("spans")
    spans = Attributes.at(made.path, **redact.body(made, given_documents, workers=1).result)
    target = out("redacted")
    select.body(target, given_documents, (RemoveSpans("redact", spans),), workers=1)
    texts = {row["source_id"]: row["text"] for row in rows_of(target.path)}
    assert texts == {"a": f"write to <EMAIL_1>. {prose(1, 40)}", "b": prose(2, 40)}
    before = {row["source_id"]: row["id"] for row in rows_of(given_documents.path)}
    after = {row["source_id"]: row["id"] for row in rows_of(target.path)}
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]


def test_code_of_the_standard_library_has_few_false_alarms_and_is_read_quickly():
    """Of all that is found in it, addresses of authors and examples in comments are real."""
    sources = sorted(LocalPath(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    texts = [path.read_text(errors="replace") for path in sources]
    size_mb = sum(map(len, texts)) / 1e6
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": pa.array(texts, pa.large_string())})
    start = time.process_time()
    spans = [span for row in find_spans(table, KINDS).column("spans").to_pylist() for span in row]
    cpu_s = time.process_time() - start
    assert sum(span["kind"] != "email" for span in spans) / size_mb < 2
    assert size_mb / cpu_s > 8, "20 on a quiet machine"
