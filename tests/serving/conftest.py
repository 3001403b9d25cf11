"""A small real byte-level tokenizer, exported model folders, and a running server, made once per session."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jax
import pytest
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lmlab.models import hf
from lmlab.models.config import Dense, Grug
from lmlab.models.decoder import init_params
from lmlab.serving.app import build_app
from lmlab.serving.commands import listen
from lmlab.serving.engine import Engine
from lmlab.serving.text import Vocabulary

GRUG = Grug(
    vocab=320,
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    experts=4,
    top_k=2,
    expert_width=32,
    shared_width=32,
    window=8,
    long_every=2,
    norm_gate_rank=8,
    max_seq=2048,
)
DENSE = Dense(vocab=320, hidden=32, layers=2, heads=4, kv_heads=2, mlp_width=64, max_seq=2048)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. ",
    "def main():\n    return 42\n",
    "Grüße aus Köln. ",
] * 8


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """A Grug and a dense model with random weights, exported as Hugging Face folders."""
    place = tmp_path_factory.mktemp("models")
    (place / "tokenizer").mkdir()
    tokenizer.save(str(place / "tokenizer" / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (place / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(about))
    for name, config in (("grug", GRUG), ("dense", DENSE)):
        params = jax.tree.map(
            lambda x: 3 * x, jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
        )
        hf.export_folder(config, params, place / "tokenizer", place / name)
    return {"grug": place / "grug", "dense": place / "dense"}


@pytest.fixture(scope="session")
def engine(folders: dict[str, Path]) -> Iterator[Engine]:
    """The Grug model in an engine of four slots."""
    engine = Engine.load(folders["grug"], slots=4, max_waiting=4)
    yield engine
    engine.close()


@contextmanager
def serving(engine: Engine) -> Iterator[httpx.Client]:
    """A client of a real server on a loopback port, run by a thread."""
    with listen("127.0.0.1", 0) as listener:
        config = uvicorn.Config(build_app(engine, "tiny@1"), log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine) as client:
        yield client
