"""The step from documents to a token store."""

from pathlib import Path as LocalPath

import numpy as np
import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.steps import Tokenizer, TokenStore, tokenize
from lmlab.tokens.store import open_store


@pytest.fixture
def trained(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.at(tokenizer_folder, name="tokenizers/t", version="dev", vocab=1000, eos_id=0)


def run(folder: LocalPath, documents: Artifact, tokenizer: Tokenizer, **options: int) -> TokenStore:
    folder.mkdir()
    return tokenize.body(
        Out.at(Path(folder), name="tokens/t", version="dev"), documents, tokenizer, **options
    )


def test_every_document_is_stored_whole_with_its_bytes_and_id(corpus, texts, trained, tokenizer, tmp_path):
    given = [("docs", text) for text in texts[:20]] + [
        ("poem", "Über <|endoftext|> allen Gipfeln"),
        ("poem", "Ruh"),
    ]
    result = run(tmp_path / "out", corpus(given), trained)
    store = open_store(Path(tmp_path / "out"))
    assert (result.documents, result.domains, result.vocab, result.eos_id) == (22, ("docs", "poem"), 1000, 0)
    assert result.size_bytes == sum(len(text.encode()) for _, text in given)
    assert result.tokens == store.tokens
    assert store.ledger.tokenizer == "tokenizers/t@dev"
    found = []
    for domain in store.domains:
        source = store.source(domain)
        for start, stop, size in zip(
            source.offsets[:-1], source.offsets[1:], source.byte_counts, strict=True
        ):
            ids = source.tokens[start:stop]
            assert ids[-1] == 0
            assert np.count_nonzero(ids == 0) == 1
            found.append((domain, tokenizer.decode(ids[:-1])))
            assert len(found[-1][1].encode()) == size
    assert sorted(found) == sorted(given)


def test_tokenizing_again_with_more_workers_gives_the_same_bytes(corpus, texts, trained, tmp_path):
    documents = corpus([("docs", text) for text in texts] + [("poem", text[:99]) for text in texts])
    run(tmp_path / "a", documents, trained)
    run(tmp_path / "b", documents, trained, workers=3)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_empty_corpus_is_refused(corpus, trained, tmp_path):
    with pytest.raises(InputError, match="no document"):
        run(tmp_path / "out", corpus([]), trained)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_without_parts_is_refused(trained, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no document parts"):
        run(tmp_path / "out", Artifact.at(Path(tmp_path / "empty"), name="c", version="dev"), trained)


def test_a_cut_part_is_named(corpus, texts, trained, tmp_path):
    documents = corpus([("docs", text) for text in texts[:4]])
    part = documents.path.local / "part-00001-of-00002.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"part-00001-of-00002\.parquet can't be read as Parquet"):
        run(tmp_path / "out", documents, trained)
    assert list((tmp_path / "out").iterdir()) == []
