"""Training a tokenizer: a fair sample, the same result every time."""

import json

import pytest
from hypothesis import given, strategies as st

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.steps import train_tokenizer
from lmlab.tokens.tokenizer import END_OF_TEXT, load_tokenizer
from lmlab.tokens.train import balanced_sample, domain_budgets

SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**9), min_size=1, max_size=6)


def train(folder, documents: Artifact, **options: object):
    folder.mkdir()
    return train_tokenizer.body(
        Out.at(Path(folder), name="tokenizers/t", version="dev"), documents, **options
    )


@given(available=SIZES, total=st.integers(1, 10**9), alpha=st.floats(0, 1))
def test_shares_fill_the_sample_as_far_as_there_is_text(available, total: int, alpha: float) -> None:
    budgets = domain_budgets(available, total, alpha)
    assert all(0 <= budgets[domain] <= available[domain] for domain in available)
    assert min(total, sum(available.values())) - len(available) <= sum(budgets.values()) <= total


def test_a_rare_domain_gets_more_than_its_share_of_bytes(corpus) -> None:
    documents = corpus([("code", f"{i} x = y + z\n" * 40) for i in range(100)] + [("poem", "rose " * 100)])
    sample = list(balanced_sample(documents.path, 4_000, alpha=0.5))
    rare = sum(len(text) for text in sample if "rose" in text)
    assert 300 < rare <= 500  # of 500 bytes that are 1 % of the corpus; in proportion they would get 40
    assert abs(sum(map(len, sample)) - 4_000) <= 2


def test_training_twice_gives_the_same_bytes(corpus, texts: list[str], tmp_path) -> None:
    documents = corpus([("docs", text) for text in texts[:30]])
    result = train(tmp_path / "a", documents, vocab=600)
    train(tmp_path / "b", documents, vocab=600)
    assert (result.vocab, result.eos_id) == (600, 0)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_special_text_in_the_training_sample_teaches_nothing(corpus, texts: list[str], tmp_path) -> None:
    documents = corpus([("docs", END_OF_TEXT + text + END_OF_TEXT) for text in texts[:10]])
    train(tmp_path / "a", documents, vocab=400)
    tokenizer = load_tokenizer(Path(tmp_path / "a"))
    assert len(tokenizer.encode(END_OF_TEXT).ids) > 1
    added = json.loads((tmp_path / "a" / "tokenizer.json").read_text())["added_tokens"]
    assert [token["content"] for token in added] == [END_OF_TEXT]


def test_too_little_text_for_the_vocabulary_is_refused(corpus, tmp_path) -> None:
    with pytest.raises(InputError, match=r"vocabulary of 2.. only, not 5,000"):
        train(tmp_path / "a", corpus([("docs", "a few words")]), vocab=5000)


@pytest.mark.parametrize("options", [{"vocab": 256}, {"alpha": 1.5}, {"sample_bytes": 0}])
def test_impossible_settings_are_refused_when_the_step_is_called(options) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        train_tokenizer("tokenizers/a", Artifact.at("nowhere"), **options)
