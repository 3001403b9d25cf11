"""The evaluation step as a whole, on runs whose weights are random: about log2(vocab) bits per token."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from lmlab.artifacts import Out
from lmlab.core.errors import ConfigError, InputError
from lmlab.evals.steps import Evaluation, evaluate
from lmlab.models.config import Dense
from lmlab.storage import Path
from lmlab.training.data import seen_tokens

COLUMNS = ["grug", "dense", "zstd -19", "unigram", "5-gram"]


@pytest.fixture(scope="module")
def evaluated(
    run_step, places: Path, grug, dense, holdout, documents, training_tokens
) -> tuple[Path, Evaluation]:
    folder, beside = places / "evaluation", {"baselines": (dense,), "trained_on": (training_tokens,)}
    return folder, run_step(evaluate, folder, grug, holdout, documents, **beside)


def test_every_column_is_measured_on_the_same_documents(evaluated, holdout) -> None:
    folder, result = evaluated
    scores = json.loads((folder / "scores.json").read_text())
    assert sorted(scores["macro"]) == sorted(COLUMNS)
    assert [row["name"] for row in scores["columns"]] == COLUMNS
    assert sum(row["bytes"] for row in scores["domains"]) == holdout.size_bytes
    assert sum(row["tokens"] for row in scores["domains"]) == holdout.tokens - holdout.documents
    assert result.macro_bpb == scores["macro"]["grug"]
    assert result.baselines == {name: scores["macro"][name] for name in COLUMNS[1:]}


def test_models_that_know_nothing_take_the_bits_of_a_uniform_guess(evaluated, holdout) -> None:
    table = pq.read_table(evaluated[0] / "documents.parquet")
    tokens = np.array(table["tokens"])
    for name in ("grug", "dense"):
        assert np.array(table[f"nats/{name}"]) == pytest.approx(tokens * math.log(holdout.vocab), rel=0.1)


def test_compressed_sizes_are_those_of_each_document_alone(evaluated, documents) -> None:
    given = pq.read_table(documents.path.local / "part-00000-of-00001.parquet")
    sizes = {
        name: len(zstandard.compress(text.encode(), 19))
        for name, text in zip(given["id"].to_pylist(), given["text"].to_pylist(), strict=True)
    }
    table = pq.read_table(evaluated[0] / "documents.parquet")
    found = np.array(table["nats/zstd -19"]) / math.log(2) / 8
    assert found == pytest.approx([sizes[name] for name in table["id"].to_pylist()])


def test_ngrams_learn_from_the_tokens_of_the_run_alone(evaluated, grug, training_tokens) -> None:
    scores = json.loads((evaluated[0] / "scores.json").read_text())
    facts = {row["name"]: row for row in scores["columns"]}
    seen = sum(map(len, seen_tokens(grug.path, [training_tokens])))
    assert facts["5-gram"]["trained_tokens"] == facts["unigram"]["trained_tokens"] == seen
    docs = next(row for row in scores["domains"] if row["domain"] == "docs")["bpb"]
    assert docs["5-gram"] < docs["unigram"] < docs["grug"]


def test_evaluating_again_gives_the_same_bytes(
    evaluated, run_step, places: Path, grug, dense, holdout, documents, training_tokens
) -> None:
    beside = {"baselines": (dense,), "trained_on": (training_tokens,)}
    run_step(evaluate, places / "again", grug, holdout, documents, **beside)
    for name in ("scores.json", "top_documents.json", "documents.parquet"):
        assert (places / "again" / name).read_bytes() == (evaluated[0] / name).read_bytes()


def test_without_the_tokens_of_the_run_there_are_no_ngrams(
    tmp_path, run_step, dense, holdout, documents
) -> None:
    result = run_step(evaluate, Path(tmp_path), dense, holdout, documents)
    assert list(result.baselines) == ["zstd -19"]


def test_progress_names_the_column_and_the_domain(
    tmp_path, dense, holdout, documents, training_tokens
) -> None:
    lines: list[str] = []

    class Told(Out):
        def status(self, text: str, done: float | None = None, total: float | None = None) -> None:
            lines.append(text)

    told = Told.at(Path(tmp_path), name="e", version="dev")
    evaluate.body(told, dense, holdout, documents, trained_on=(training_tokens,))
    assert "dense: docs" in lines
    assert "5-gram over the tokens of dense" in lines


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([("docs", "another text")], "domain docs: .* has 1 documents and the token store .* 6"),
        ([("poem", "another text")], "has a document of domain 'poem'"),
        ([], "domain docs: .* has 0 documents"),
    ],
)
def test_documents_that_the_tokens_do_not_come_from_are_refused(
    tmp_path, dense, holdout, others, message, run_step, write_documents
) -> None:
    other = write_documents(Path(tmp_path / "other"), others)
    with pytest.raises(InputError, match=message):
        run_step(evaluate, Path(tmp_path / "out"), dense, holdout, other)


def test_runs_of_one_name_are_refused_before_any_work(tmp_path, run_step, dense, holdout, documents) -> None:
    with pytest.raises(ConfigError, match="must differ"):
        run_step(evaluate, Path(tmp_path / "out"), dense, holdout, documents, baselines=(dense,))


def test_a_model_of_another_tokenizer_is_refused(tmp_path, run_step, run_of, holdout, documents) -> None:
    small = run_of("small", Dense.sized(32, vocab=holdout.vocab - 100, layers=1))
    with pytest.raises(ConfigError, match="small has 300 ids and the held-out tokens 400"):
        run_step(evaluate, Path(tmp_path / "out"), small, holdout, documents)
