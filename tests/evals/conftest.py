"""A small corpus of real text with its tokens, and runs whose weights are random."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pydoc_data.topics import topics

import jax
import numpy as np
import orjson
import pyarrow as pa
import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.corpus.schema import DOCUMENTS, document_id
from lmlab.dataflow.files import write_parquet
from lmlab.models import init_params
from lmlab.models.config import Dense, Grug, Model
from lmlab.storage import Path
from lmlab.tokens.steps import Tokenizer, TokenStore, tokenize, train_tokenizer
from lmlab.training import identity
from lmlab.training.checkpoint import Checkpoints, Position
from lmlab.training.recipe import AdamW, Mix, Run
from lmlab.training.steps import Trained

VOCAB = 400


def write(folder: Path, documents: list[tuple[str, str]]) -> Artifact:
    rows = sorted((document_id(text), domain, text) for domain, text in documents)
    columns = {
        "id": [row[0] for row in rows],
        "text": [row[2] for row in rows],
        "source_id": ["test"] * len(rows),
        "meta": [orjson.dumps({"domain": row[1]}).decode() for row in rows],
    }
    write_parquet(folder / "part-00000-of-00001.parquet", pa.table(columns, DOCUMENTS))
    return Artifact.at(folder, name="corpus", version="dev")


def body(step: Callable, folder: Path, *args: object, **options: object):
    """The result of a step's body as an artifact in `folder`."""
    result = step.body(Out.at(folder, name="test", version="dev"), *args, **options)
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    return type(result).at(folder, name="test", version="dev", **values)


@pytest.fixture(scope="session")
def run_step() -> Callable:
    """A function that runs a step's body in a folder."""
    return body


@pytest.fixture(scope="session")
def write_documents() -> Callable[[Path, list[tuple[str, str]]], Artifact]:
    """A function that writes (domain, text) pairs as documents."""
    return write


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("evals"))


@pytest.fixture(scope="session")
def documents(places: Path) -> Artifact:
    """Held-out text of two domains."""
    texts = [topics[key] for key in sorted(topics)]
    chosen = [("docs", text[:1500]) for text in texts[:6]] + [
        ("names", key * 3) for key in sorted(topics)[:9]
    ]
    return write(places / "holdout", chosen)


@pytest.fixture(scope="session")
def tokenizer(places: Path, documents: Artifact) -> Tokenizer:
    return body(train_tokenizer, places / "tokenizer", documents, vocab=VOCAB)


@pytest.fixture(scope="session")
def holdout(places: Path, documents: Artifact, tokenizer: Tokenizer) -> TokenStore:
    return body(tokenize, places / "tokens-holdout", documents, tokenizer)


@pytest.fixture(scope="session")
def training_tokens(places: Path, tokenizer: Tokenizer) -> TokenStore:
    texts = [topics[key] for key in sorted(topics)[10:40]]
    documents = write(places / "train", [("docs", text) for text in texts])
    return body(tokenize, places / "tokens-train", documents, tokenizer)


@pytest.fixture(scope="session")
def run_of(places: Path, training_tokens: TokenStore) -> Callable[[str, Model], Trained]:
    """A function that makes a run folder as `train` leaves it, with random weights."""

    def make(name: str, model: Model) -> Trained:
        run = Run(
            model, Mix({training_tokens: 1.0}), AdamW(lr=1e-3), batch=4, seq=64, steps=8, dtype="float32"
        )
        folder = places / name
        identity.keep(run, folder)
        random = np.random.default_rng(0)
        shapes = jax.eval_shape(partial(init_params, model), jax.random.key(0))
        params = jax.tree.map(lambda x: random.normal(0, 0.02, x.shape).astype(np.float32), shapes)
        writer = Checkpoints(folder)
        writer.save(Position(step=run.steps), {"params": params}, {"none": np.zeros(1)})
        writer.close()
        counts = {"params": model.param_count(), "active_params": model.active_param_count()}
        seconds = {"train_seconds": 1.0, "compile_seconds": 1.0, "tokens_per_second": 1.0}
        facts = {
            "steps": run.steps,
            "tokens": run.tokens,
            "flops": 1.0,
            "loss": 6.0,
            "holdout_macro_bpb": None,
        }
        given = {**counts, **seconds, **facts, "model": model}
        return Trained.at(folder, name=f"runs/{name}", version="dev", **given)

    return make


@pytest.fixture(scope="session")
def grug(run_of) -> Trained:
    return run_of("grug", Grug.sized(32, vocab=VOCAB, layers=1))


@pytest.fixture(scope="session")
def dense(run_of) -> Trained:
    return run_of("dense", Dense.sized(32, vocab=VOCAB, layers=1))
