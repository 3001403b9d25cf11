"""Training documents that repeat held-out text are flagged and attributed; what many share is not."""

import json

import pyarrow as pa
import pytest
from sample_archives import prose

from lmlab.core.errors import ConfigError
from lmlab.corpus import Decontamination
from lmlab.corpus.contamination import mark_contaminated
from lmlab.corpus.schema import document_id
from lmlab.dataflow import read_jsonl, read_parquet, write_parquet
from lmlab.dataflow.runner import open_runner
from lmlab.storage import Path

LABEL = "Licensed under the terms of the example license, without warranty of any kind, express or implied."

SETTINGS = Decontamination()


@pytest.fixture
def flagged(documents, tmp_path, rows_of):
    """(text's number, number of the held-out text, reason) of the training texts that repeat one of them."""

    def run(training, heldout, settings=SETTINGS):
        folders = [
            documents([("d", f"{name}/{i}", text) for i, text in enumerate(texts)], 1, name).path
            for name, texts in (("training", training), ("heldout", heldout))
        ]
        with open_runner(1) as runner:
            out = Path(tmp_path / "flags")
            mark_contaminated(folders[0], {"held-out text": folders[1]}, out, settings, runner, print)
        marks = {row["id"]: row for row in rows_of(out)}
        held = [document_id(text) for text in heldout]
        rows = [(i, marks[document_id(text)]) for i, text in enumerate(training)]
        return [(i, held.index(r["record"]), r["reason"]) for i, r in rows if r["reason"]]

    return run


def test_planted_paragraph_is_flagged_and_attributed(flagged):
    secret = prose(7, 30)
    training = [prose(i, 200) for i in range(20)]
    training[11] = f"{prose(99, 100)}\n\n{secret.upper().replace(' ', ',  ')}\n\n{prose(98, 100)}"
    held = [prose(50, 100), f"{prose(51, 60)}\n\n{secret}\n\n{prose(52, 60)}", prose(53, 100)]
    ((row, source, reason),) = flagged(training, held)
    assert (row, source) == (11, 1)
    assert reason.startswith("repeats held-out text: 1.00 of the 18 runs of paragraph 3 stand in ")


def test_paragraph_of_thirteen_words_is_enough(flagged):
    secret = prose(7, 13)
    ((row, source, _),) = flagged([f"{prose(1, 90)}\n\n{secret}"], [f"{secret}\n\n{prose(2, 90)}"])
    assert (row, source) == (0, 0)


def test_common_label_is_not_flagged(flagged):
    training = [f"{LABEL}\n\n{prose(i, 100)}" for i in range(20)]
    held = [f"{LABEL}\n\n{prose(60, 100)}"]
    assert flagged(training, held) == []
    # The same label in few documents is no boilerplate.
    assert [row for row, _, _ in flagged(training[:3], held)] == [0, 1, 2]


def test_paragraph_that_shares_less_than_half_is_not_flagged(flagged):
    secret = prose(7, 20)
    assert flagged([secret + " " + prose(1, 40)], [secret + " " + prose(2, 40)]) == []


def test_short_document_is_compared_whole(flagged):
    assert [row for row, _, _ in flagged(["Yes, I do!", "no i do not"], ["yes i do"])] == [0]
    assert flagged(["yes"], ["yes"]) == []  # fewer than three words say nothing


def test_text_without_spaces_is_compared_by_characters(flagged):
    secret = "人人生而自由在尊严和权利上一律平等他们赋有理性和良心"
    assert [row for row, _, _ in flagged([secret, secret[::-1]], [secret])] == [0]


def test_held_out_text_without_any_run_flags_nothing(flagged):
    assert flagged([prose(1, 100)], ["", "one two"]) == []


@pytest.fixture
def against(documents, tmp_path, rows_of):
    """{text: its mark} of training texts compared with evals given as {name: rows}, or a table of them."""

    def run(training, evals, settings=SETTINGS):
        made = documents([("d", str(i), text) for i, text in enumerate(training)], 2).path
        for name, rows in evals.items():
            (tmp_path / name).mkdir()
            if isinstance(rows, pa.Table):
                write_parquet(Path(tmp_path / name / "test-00000-of-00001.parquet"), rows)
            else:
                (tmp_path / name / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
        folders = {name: Path(tmp_path / name) for name in evals}
        with open_runner(1) as runner:
            mark_contaminated(made, folders, Path(tmp_path / "flags"), settings, runner, print)
        marks = {row["id"]: row for row in rows_of(Path(tmp_path / "flags"))}
        return {text: marks[document_id(text)] for text in training}

    return run


def test_question_leaks_from_parquet_as_hubs_publish_it(against):
    rows = pa.table({"question": [prose(i, 30) for i in range(9)], "choices": [["yes", "no"]] * 9})
    leak = f"{prose(900, 80)}\n\n{rows['question'][4].as_py()}"
    assert against([leak], {"mmlu": rows})[leak]["record"] == "test-00000-of-00001:4"


def test_paragraph_of_rare_han_is_counted_as_the_kernels_do(against, tmp_path):
    question = prose(1, 30)
    text = f"\U00020000\U00020001\n\n{question}"
    against([text], {"gsm": [{"question": question}]})
    (shown,) = read_jsonl(Path(tmp_path / "flags" / "flagged.jsonl"))
    assert (shown["paragraph"], shown["text"]) == (2, question)


INSTRUCTION = (
    "Read the question with care, think about it step by step and then give one number as your answer."
)


def test_leaked_question_is_attributed_to_its_eval_and_record(against, tmp_path):
    first, second = ([{"question": prose(100 * k + i, 30), "n": i} for i in range(20)] for k in (1, 2))
    leaks = [f"{prose(900, 80)}\n\n{first[3]['question']}", f"{second[7]['question']}\n\n{prose(901, 80)}"]
    marks = against([*leaks, prose(902, 90)], {"gsm": first, "mmlu": second})
    assert [(m["eval"], m["record"], m["overlap"]) for m in marks.values()] == [
        ("gsm", "test:3", 1.0), ("mmlu", "test:7", 1.0), (None, None, None),
    ]  # fmt: skip
    assert marks[leaks[0]]["reason"] == "repeats gsm: 1.00 of the 18 runs of paragraph 3 stand in test:3"
    sidecar = read_parquet(Path(tmp_path / "flags" / "evals" / "gsm.parquet"))
    assert set(sidecar["record"].to_pylist()) == {f"test:{i}" for i in range(20)}
    assert sidecar.num_rows == 20 * 18


def test_instructions_that_all_records_share_flag_nothing(against):
    rows = [{"prompt": INSTRUCTION, "question": prose(i, 30), "id": f"q{i}"} for i in range(20)]
    copied = f"{prose(900, 80)}\n\n{rows[4]['question']}"
    marks = against([f"{INSTRUCTION}\n\n{prose(901, 80)}", copied], {"gsm": rows})
    assert [mark["record"] for mark in marks.values()] == [None, "q4"]


def test_famous_question_is_found_in_all_its_copies_where_common_runs_count(against):
    question = prose(1, 30)
    texts = [f"{prose(900 + i, 80)}\n\n{question}" for i in range(30)]
    marks = against(texts, {"gsm": [{"question": question}]}, Decontamination(common=None))
    assert {mark["record"] for mark in marks.values()} == {"test:0"}


def test_what_was_found_is_shown(against, tmp_path):
    question = "_Question_ — " + prose(1, 30) + " ²?"
    text = f"***\n\n{prose(900, 70)}\n \n--\n\n{question}\nmore\n\nend"
    against([text], {"gsm": [{"question": question}]})
    (shown,) = read_jsonl(Path(tmp_path / "flags" / "flagged.jsonl"))
    assert shown["text"] == question.removeprefix("_").rstrip("?") + "?\nmore"
    assert (shown["eval"], shown["record"], shown["source_id"]) == ("gsm", "test:0", "0")


def test_short_record_is_found_where_it_is_the_whole_text_but_not_as_a_label(against):
    rows = [{"question": "What is seven times six?", "choices": ["yes", "forty two"]}]
    texts = ["WHAT IS SEVEN TIMES SIX", f"{prose(1, 60)}\n\nWhat is seven times six?", "Forty two", "Yes!"]
    assert [mark["record"] for mark in against(texts, {"gsm": rows}).values()] == ["test:0", None, None, None]


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="overlap=0"):
        Decontamination(overlap=0)
    with pytest.raises(ConfigError, match="'common': 0,"):
        Decontamination(common=0)
    with pytest.raises(ConfigError, match="version=2 of the text hashes is not what this code computes"):
        Decontamination(version=2)
