"""One door to every architecture: init, forward, logits, by the config's type."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from lmlab.core.errors import ConfigError
from lmlab.models import dense, grug
from lmlab.models.config import Dense, Grug, Model
from lmlab.models.layers import Cache, Context, Output, Params, dot, turns_at


def init_params(config: Model, key: Array) -> Params:
    """Fresh float32 parameters.

    >>> import jax
    >>> params = init_params(Dense.sized(64, vocab=100), jax.random.key(0))
    >>> params["head"].shape
    (64, 100)
    """
    return grug.init(config, key) if isinstance(config, Grug) else dense.init(config, key)


def forward(
    params: Params,
    config: Model,
    tokens: Int[Array, "batch seq"],
    *,
    segments: Int[Array, "batch seq"] | None = None,
    cache: Cache | None = None,
    dtype: DTypeLike = jnp.bfloat16,
) -> Output:
    """Hidden states of `tokens`, which follow what `cache` holds; matrix products take operands in `dtype`.

    A token sees earlier ones of its own segment only; segment ids below 0 are padding. With a cache, each
    row's tokens are written after its length (rows must have room), experts drop nothing, and segments are
    refused.
    """
    if cache is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    elif segments is not None:
        raise ConfigError(
            "forward got segments and a cache, but a cache holds one text a row, so they would be ignored. "
            "Pass one of them."
        )
    else:
        positions = cache.lengths[:, None] + jnp.arange(tokens.shape[1])
    context = Context(positions, segments, turns_at(positions, config.rope_theta, config.rotary_width), dtype)
    if isinstance(config, Grug):
        return grug.forward(params, config, tokens, context, cache)
    return dense.forward(params, config, tokens, context, cache)


def logits(
    params: Params,
    config: Model,
    hidden: Float[Array, "*rows hidden"],
    *,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "*rows vocab"]:
    """Scores of every token of the vocabulary, float32. Holds them all: for losses use `token_losses`."""
    return dot(hidden, head(params, config), dtype)


def head(params: Params, config: Model) -> Float[Array, "hidden vocab"]:
    """The LM head: a matrix of its own, or the embedding transposed where they are tied."""
    is_tied = isinstance(config, Dense) and config.tied
    return params["embed"]["weight"].T if is_tied else params["head"]
