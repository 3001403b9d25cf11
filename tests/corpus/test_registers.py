"""Registers and statistics agree with the truth of planted texts, field by field."""

from collections import Counter

import pyarrow as pa
import pytest
from planted import registers as planted
from sample_archives import prose

from lmlab.core.config import canonical
from lmlab.core.errors import ConfigError
from lmlab.corpus import Attributes, Drop, Limit, registers, select
from lmlab.corpus.render.documents import hplt
from lmlab.corpus.traits.config import GOPHER
from lmlab.corpus.traits.registers import describe, statistics


def rows(texts, metas=None, limits=GOPHER):
    metas = metas or [{}] * len(texts)
    columns = {"id": [str(i) for i in range(len(texts))], "text": texts, "meta": list(map(canonical, metas))}
    return describe(pa.table(columns), limits).to_pylist()


def test_the_register_agrees_with_the_truth_in_every_class():
    truth, texts = zip(*planted(), strict=True)
    told = [row["register"] for row in rows(texts)]
    total, right = Counter(truth), Counter(t for t, answer in zip(truth, told, strict=True) if t == answer)
    assert min(total.values()) >= 15
    assert {kind: right[kind] / total[kind] for kind in total if right[kind] / total[kind] < 0.9} == {}


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("one two three four", "words", 4),
        ("ab abcd", "word_length", 3),
        ("a1 22 !! b", "letter_words", 0.5),
        ("The cat and THE dog have with", "stop_words", 4),
        ("# a # b", "symbols", 0.5),
        ("wait... what…", "symbols", 1),
        ("- a\\n* b\\n• c\\nd".replace("\\n", "\n"), "bullet_lines", 0.75),
        ("so...\nand…\nthen.\nend", "ellipsis_lines", 0.5),
        ("a.\nb!\nc\nd", "ended_lines", 0.5),
        ("same\nsame\nsame\nelse", "repeated_lines", 0.5),
        ("one two\n\none two\n\nsix", "repeated_paragraphs", 7 / 17),
        ("a b c d e a b c d e", "repeated_runs", 1 / 6),
    ],
)
def test_a_statistic_is_what_its_name_says(text, field, value):
    assert statistics(text)[field] == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "\n\n", "x", "\0", "é" * 300_000, "\n" * 300_000])
def test_odd_texts_have_statistics(text):
    found = statistics(text)
    assert all(value == value and value >= 0 for value in found.values())


def test_what_the_source_says_of_a_document_is_taken_over():
    """As the renderer of HPLT writes it."""
    given = {"web-register": {"NA": 0.2, "HI": 0.7, "MT": 0.1}, "pii": [[3, 9]]}
    (rendered,) = hplt({"id": "1", "text": prose(1, 100), **given})
    metas = [rendered.meta, {"register": 3, "personal_data": None}, {"personal_data": True}]
    labelled, odd, flagged = rows([rendered.text] * 3, metas)
    assert (labelled["register"], labelled["pii"]) == ("HI", 1)
    assert labelled["machine_translated"] == pytest.approx(0.1)
    assert (odd["register"], odd["pii"], odd["machine_translated"]) == ("prose", None, None)
    assert flagged["pii"] == 1


def test_a_text_that_says_it_is_machine_translated_is_marked():
    texts = [f"{prose(1, 300)} Translated by Google.", f"{prose(1, 300)} Translated by Constance Garnett."]
    assert [row["machine_translated"] for row in rows(texts)] == [1.0, None]


def test_documents_outside_a_limit_are_dropped_with_the_statistic_as_reason(documents, out, rows_of):
    given = documents([("a", "long", prose(1, 100)), ("a", "short", prose(2, 10))], parts=1)
    made, kept = out("registers"), out("kept")
    found = Attributes.at(made.path, **registers.body(made, given, workers=1).result)
    select.body(kept, given, (Drop("gopher", found),), workers=1)
    assert [row["source_id"] for row in rows_of(kept.path)] == ["long"]
    (rejected,) = rows_of(kept.path / "rejected" / "gopher")
    assert rejected["reason"] == "words: 10"


def test_other_limits_can_be_set():
    assert [row["reason"] for row in rows([prose(1, 10)], limits=())] == [None]
    english = (Limit("stop_words", 2),)
    assert [row["reason"] for row in rows(["the cat and dog", "le chat"], limits=english)] == [
        None,
        "stop_words: 0",
    ]


def test_a_limit_on_nothing_known_is_refused():
    with pytest.raises(ConfigError, match="wrods"):
        Limit("wrods", 3)
