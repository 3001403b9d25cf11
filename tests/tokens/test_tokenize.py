"""The step from documents to a token store."""

from pathlib import Path as LocalPath

import numpy as np
import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.steps import Tokenizer, TokenStore, tokenize
from lmlab.tokens.store import open_store, verify


def check_files(folder: Path) -> None:
    verify(folder, open_store(folder).ledger.shards)


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
    assert store.ledger.head.tokenizer == "tokenizers/t@dev"
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
    assert not (tmp_path / "out" / "ledger.json").exists()


def test_a_step_that_died_goes_on_where_it_was(corpus, texts, trained, tmp_path):
    documents = corpus([("docs", text) for text in texts], parts=4)
    run(tmp_path / "whole", documents, trained, workers=1)
    bad = documents.path.local / "part-00003-of-00004.parquet"
    good = bad.read_bytes()
    bad.write_bytes(good[:-20])
    with pytest.raises(InputError, match=r"part-00003"):
        run(tmp_path / "out", documents, trained, workers=1)
    first = tmp_path / "out" / "shard-00000-of-00004.tokens"
    second = tmp_path / "out" / "shard-00001-of-00004.tokens"
    second.write_bytes(b"cut")  # as the crash of a machine may leave it
    written = first.stat().st_mtime_ns
    bad.write_bytes(good)
    out = Out.at(Path(tmp_path / "out"), name="tokens/t", version="dev")
    tokenize.body(out, documents, trained, workers=1)
    assert first.stat().st_mtime_ns == written
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert not (tmp_path / "out" / ".work").exists()


def test_a_store_in_a_bucket_is_written_and_read_without_a_disk(corpus, texts, trained):
    documents = corpus([("docs", text) for text in texts[:9]])
    out = Path("memory://tokenize/store")
    tokenize.body(Out.at(out, name="tokens/t", version="dev"), documents, trained, workers=1)
    source = open_store(out).source("docs")
    assert source.document_count == 9
    assert np.count_nonzero(source.tokens[: source.token_count] == 0) == 9
    assert source.tokens[5:9].tolist() == np.asarray(source.tokens)[5:9].tolist()
    check_files(out)


def test_the_ledger_says_what_encoded_the_documents(corpus, texts, trained, tmp_path):
    run(tmp_path / "out", corpus([("docs", text) for text in texts[:9]]), trained, workers=1)
    assert open_store(Path(tmp_path / "out")).ledger.encoders() == {"compiled": 9}
