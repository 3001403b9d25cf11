"""`lmlab tokens`: a folder of a person's own to tokens, from the command line."""

import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from lmlab.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own" / "docs").mkdir(parents=True)
    for name in sorted(topics)[:12]:
        (tmp_path / "own" / "docs" / f"{name}.txt").write_text(topics[name])
    rows = [{"text": "x = 1\n" * 99}, {"text": "y = 2\n" * 99}]
    (tmp_path / "own" / "code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "own"


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["tokens", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_folder_becomes_a_tokenizer_and_a_store_that_decode_back(folder, tmp_path, capsys) -> None:
    tokenizer, store = tmp_path / "tokenizer", tmp_path / "store"
    assert "vocab           600" in said(capsys, "train", folder, "--vocab", 600, "--out", tokenizer)
    built = said(capsys, "build", folder, "--tokenizer", tokenizer, "--out", store, "--workers", 1)
    assert [line.split()[:2] for line in built.splitlines()[1:3]] == [["docs", "12"], ["text", "2"]]
    found = json.loads(said(capsys, "inspect", store, "--verify", "--json"))
    assert found["encoded by"] == {"compiled": 14}
    counted = json.loads(said(capsys, "count", folder, "--tokenizer", tokenizer, "--json"))
    tokens = {row["domain"]: row["tokens"] for row in found["domains"]}
    assert {row["domain"]: row["tokens"] for row in counted} == tokens
    decoded = json.loads(said(capsys, "decode", store, "--domain", "text", "-n", 2, "--json"))
    assert decoded == {"text": ["x = 1\n" * 99, "y = 2\n" * 99]}
    assert "| docs | 12 |" in said(capsys, "card", store)


def test_tokenizers_are_compared_on_ones_own_text(folder, tmp_path, capsys) -> None:
    for vocab in (300, 600):
        said(capsys, "train", folder, "--vocab", vocab, "--out", tmp_path / str(vocab))
    names = f"{tmp_path / '300'},{tmp_path / '600'}"
    found = json.loads(said(capsys, "compare", folder, "--tokenizer", names, "--json"))
    small, large = (rows[0]["bytes_per_token"] for rows in found.values())
    assert 1 < small < large
    estimated = said(capsys, "estimate", folder, "--tokenizer", tmp_path / "600")
    assert "±" in estimated
    assert "tokens, end-of-document ids included" in estimated


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["bake"], 2, "has no subverb 'bake'. It has: build, train"),
        (["build", "."], 2, "build needs --tokenizer"),
        (["inspect"], 2, "inspect needs a PATH"),
        (["inspect", "nowhere@1"], 2, "nowhere@1 does not exist, neither as a path nor as an artifact"),
        (["card", "."], 1, "has no ledger.json"),
        (["train", ".", "--out", "."], 2, "exists already, and nothing is written over"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, words, code, message) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tokens", *words, "--root", str(tmp_path)]) == code
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
