"""A token store with structure that a tiny model can learn, and the smallest run over it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as LocalPath
from typing import Any

import numpy as np
import pytest

from lmlab.artifacts import Artifact
from lmlab.models.config import Dense
from lmlab.storage import Path
from lmlab.tokens.store import StoreWriter
from lmlab.training.recipe import AdamW, Mix, Run, Schedule

VOCAB, EOS = 32, 0
Documents = dict[str, list[list[int]]]


def write_store(folder: LocalPath, documents: Documents, *, vocab: int = VOCAB) -> Artifact:
    """A token store with these documents by domain; each token stands for two bytes of text."""
    place = Path(folder)
    with StoreWriter(place, vocab=vocab, eos_id=EOS, tokenizer="tokenizers/test@dev") as writer:
        for domain, texts in documents.items():
            for number, text in enumerate(texts):
                writer.add(domain, f"{number:032x}", 2 * len(text), np.asarray(text))
        writer.finish()
    return Artifact.at(place, name=f"tokens/{folder.name}", version="dev")


def counting_documents(seed: int, count: int, domains: tuple[str, ...] = ("down", "up")) -> Documents:
    """Documents that count up or down from a random start."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, 31, count), random.integers(5, 60, count)
    steps = {domain: 1 if domain == "up" else -1 for domain in domains}
    return {
        domain: [
            [1 + (start + step * place) % (VOCAB - 1) for place in range(length)]
            for start, length in zip(starts, lengths, strict=True)
        ]
        for domain, step in steps.items()
    }


@pytest.fixture
def write(tmp_path: LocalPath) -> Callable[..., Artifact]:
    """A function that writes a token store: (name, documents, vocab=…) -> artifact."""
    return lambda name, documents, **how: write_store(tmp_path / name, documents, **how)


@pytest.fixture
def store(write: Callable[..., Artifact]) -> Artifact:
    return write("train", counting_documents(0, 80))


@pytest.fixture
def holdout(write: Callable[..., Artifact]) -> Artifact:
    return write("holdout", counting_documents(1, 12))


@pytest.fixture
def recipe(store: Artifact, holdout: Artifact) -> Callable[..., Run]:
    """The smallest run; changes are given by field name."""
    run = Run(
        model=Dense(vocab=VOCAB, hidden=16, layers=1, heads=2, kv_heads=2, mlp_width=32),
        data=Mix({store: 1.0}),
        optimizer=AdamW(lr=0.01),
        batch=4,
        seq=32,
        steps=12,
        schedule=Schedule(warmup=0.1, decay=0.5),
        validation=holdout,
        validation_every=5,
        validation_tokens=64,
        dtype="float32",
    )

    def make(**changes: Any) -> Run:
        return replace(run, **changes)

    return make
