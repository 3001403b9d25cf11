"""The columns of the evaluation: trained models, and what a model must beat to be worth its cost."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from lmlab.core.errors import ConfigError
from lmlab.evals.bpb import model_score, score_source
from lmlab.evals.heldout import HeldOut, nats_of_bytes
from lmlab.evals.ngrams import NgramModel, train_ngrams
from lmlab.evals.table import Column
from lmlab.models.host import prepare_process
from lmlab.storage import Path
from lmlab.tokens.store import Source, Store
from lmlab.training.checkpoint import load_final
from lmlab.training.identity import recipe_of

Report = Callable[[str, int, int], None]  # text, done, total


def model_column(name: str, run: Path, store: Store, report: Report) -> Column:
    """Score every held-out document with the final weights of a run, in the precision it was trained in."""
    recipe = recipe_of(run)
    config, params = load_final(run)
    if config.vocab < store.vocab:
        raise ConfigError(
            f"{name} has {config.vocab} ids and the held-out tokens {store.vocab}, so they come from another "
            "tokenizer. Tokenize the held-out text with the tokenizer that the run was trained with."
        )
    prepare_process()
    score = model_score(config, params, jnp.dtype(recipe.dtype))
    nats, done = [], 0
    for domain in store.domains:
        report(f"{name}: {domain}", done, store.tokens)
        source = store.source(domain)
        nats.append(score_source(score, source, eos_id=store.eos_id, seq=recipe.seq))
        done += source.token_count
    return Column(
        name=name,
        kind="model",
        how=f"final weights in {recipe.dtype}; a token sees at most {recipe.seq} of its document before it",
        nats=np.concatenate(nats),
        facts={"params": config.param_count(), "trained_tokens": recipe.tokens},
    )


def zstd_column(held_out: HeldOut) -> Column:
    """`zstd -19` of each document alone: what a general compressor knows about text."""
    how = "each document compressed alone: complete frames, no checksum, no dictionary"
    return Column("zstd -19", "compressor", how, nats_of_bytes(held_out.compressed), {})


def ngram_column(name: str, order: int, seen: Sequence[Integer[np.ndarray, " _"]], store: Store) -> Column:
    """An n-gram model over the sequences that a run was trained on, scoring the same held-out tokens."""
    model = train_ngrams(seen, vocab=store.vocab, eos_id=store.eos_id, order=order)
    return Column(
        name=name,
        kind="n-gram",
        how="interpolated modified Kneser-Ney, counted over the very tokens that the main run trained on",
        nats=np.concatenate([ngram_nats(model, store.source(domain)) for domain in store.domains]),
        facts={"trained_tokens": model.tokens, "grams": sum(len(row.keys) for row in model.orders)},
    )


def ngram_nats(model: NgramModel, source: Source) -> Float[np.ndarray, " documents"]:
    """Nats of each document of a domain, its closing end id left out."""
    stream = np.concatenate([[model.eos_id], source.tokens])
    nats = model.nats(stream)[1:]
    nats[source.offsets[1:] - 1] = 0.0
    return np.add.reduceat(nats, source.offsets[:-1])
