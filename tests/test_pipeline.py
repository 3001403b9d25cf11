"""From archives to tokens on two Ray nodes: every file of every stage is that of a local run."""

import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.corpus import Corpus, Documents, Raw, curate, extract, fetch, quickstart_sources
from lmlab.storage import Path
from lmlab.storage.copy import digests
from lmlab.tokens import Tokenizer, TokenStore, tokenize, train_tokenizer


def placed(cls: type[Artifact], place: Path, step, *arguments, **options) -> Artifact:
    return cls.at(place, **step.body(Out.at(place), *arguments, **options).result)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_the_whole_pipeline_gives_the_same_bytes_on_two_nodes(tmp_path, ray_cluster, monkeypatch):
    root = Path(str(tmp_path))
    raw = placed(Raw, root / "raw", fetch, quickstart_sources("stdlib"))
    made = {}
    for on in ("local", ray_cluster.client_address):
        monkeypatch.setenv("LMLAB_ON", on)
        here = root / on.partition(":")[0]
        documents = placed(Documents, here / "documents", extract, raw)
        corpus = placed(Corpus, here / "corpus", curate, documents)
        tokenizer = placed(Tokenizer, here / "tokenizer", train_tokenizer, corpus["train"], vocab=1_000)
        placed(TokenStore, here / "tokens", tokenize, corpus["train"], tokenizer)
        made[on] = digests(here)
    local, on_ray = made.values()
    assert len(local) > 10
    assert local == on_ray
