"""The steps of a corpus work on any store, and write the same there as on a disk."""

import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.corpus import (
    Drop,
    Embeddings,
    Keep,
    RemoveSpans,
    Topics,
    curate,
    decontaminate,
    embed,
    languages,
    near_duplicates,
    normalize,
    redact,
    repeated_paragraphs,
    replay,
    select,
    topics,
)
from lmlab.storage import Path


@pytest.fixture
def built(documents, enough):
    """Run the steps below a root; what is there afterwards, by name."""
    made = documents(enough)

    def run(root):
        def at(step, name, *arguments, cls=Artifact, **keywords):
            out = Out.at(str(root / name), name=name)
            result = step.body(out, *arguments, workers=1, **keywords).result
            return cls.at(str(root / name), **result if cls is not Artifact else {})

        at(curate, "curated", made)
        whole = at(normalize, "whole", made)
        near = at(near_duplicates, "near", whole)
        leaked = at(decontaminate, "leaked", whole, {"held": Artifact.at(str(root / "curated" / "holdout"))})
        told = at(languages, "told", whole)
        private = at(redact, "private", whole)
        repeats = at(repeated_paragraphs, "repeats", whole)
        vectors = at(embed, "vectors", whole, dims=4, cls=Embeddings)
        at(topics, "topics", whole, vectors, count=2, cls=Topics)
        at(replay, "replayed", whole)
        rules = (Drop("near", near), Drop("leaked", leaked), Keep("language", told, "score", at_least=0.0))
        kept = at(select, "kept", whole, rules)
        at(select, "cut", kept, (RemoveSpans("private", private),))
        at(select, "cut2", kept, (RemoveSpans("repeats", repeats),))
        return {path.relative_to(root): path.read_bytes() for path in root.walk()}

    return run


@pytest.mark.slow
def test_bytes_on_a_bucket_are_those_on_a_disk(built, any_root, tmp_path):
    assert built(any_root / "there") == built(Path(tmp_path / "here"))
