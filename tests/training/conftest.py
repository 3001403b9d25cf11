"""A token store with structure that a tiny model can learn, and the smallest run over it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as LocalPath
from typing import Any

import pytest
from sample_stores import VOCAB, counting_documents, write_store

from lmlab.artifacts import Artifact
from lmlab.models.config import Dense
from lmlab.training.recipe import AdamW, Mix, Run, Schedule


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
