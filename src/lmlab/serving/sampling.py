"""From logits to the next token, for all slots at once, inside the compiled step.

A slot's choice depends on its own logits, dials and position only: never on the other slots.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


class Dials(NamedTuple):
    """What each slot samples with."""

    temperature: Float[Array, " slots"]
    top_p: Float[Array, " slots"]
    key: UInt32[Array, "slots 2"]
    """Start of the slot's random stream; the position is folded in for each token."""


class Picked(NamedTuple):
    """The chosen tokens. Log-probabilities are the model's own: temperature 1, nothing cut off."""

    token: Int[Array, " slots"]
    logprob: Float[Array, " slots"]
    top_ids: Int[Array, "slots top"]
    top_logprobs: Float[Array, "slots top"]
    is_finite: Bool[Array, " slots"]
    """False where the logits hold NaN or infinity: such a token means nothing."""


def stream_key(stream: UInt32[Array, " 3"]) -> UInt32[Array, " 2"]:
    """The random stream of one answer: both halves of its seed, and which of n answers it is."""
    key = jax.random.PRNGKey(0)
    for part in stream:
        key = jax.random.fold_in(key, part)
    return key


def pick(
    logits: Float[Array, "slots vocab"],
    dials: Dials,
    positions: Int[Array, " slots"],
    wants_top: Bool[Array, ""],
    top: int,
) -> Picked:
    """Choose a token for every slot; the `top` likeliest are only searched for if `wants_top`."""
    logprobs = jax.nn.log_softmax(logits)
    greedy = jnp.argmax(logits, axis=-1)
    token = jax.lax.cond(
        jnp.any(dials.temperature > 0),
        lambda: jnp.where(dials.temperature > 0, _sample(logits, dials, positions), greedy),
        lambda: greedy,
    )
    top_logprobs, top_ids = likeliest(logprobs, wants_top, top)
    return Picked(
        token=token,
        logprob=jnp.take_along_axis(logprobs, token[:, None], axis=-1)[:, 0],
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        is_finite=jnp.all(jnp.isfinite(logits), axis=-1),
    )


def likeliest(
    logprobs: Float[Array, "rows vocab"], wanted: Bool[Array, ""], top: int
) -> tuple[Float[Array, "rows top"], Int[Array, "rows top"]]:
    """The `top` best log-probabilities of each row and their ids, best first; zeros if not `wanted`."""
    rows = logprobs.shape[0]
    return jax.lax.cond(
        wanted,
        lambda: tuple(jax.lax.top_k(logprobs, top)),
        lambda: (jnp.zeros((rows, top), logprobs.dtype), jnp.zeros((rows, top), jnp.int32)),
    )


def _sample(
    logits: Float[Array, "slots vocab"], dials: Dials, positions: Int[Array, " slots"]
) -> Int[Array, " slots"]:
    """Inverse-CDF sampling: one random number per token, where Gumbel noise takes one per word."""
    temperature = jnp.where(dials.temperature > 0, dials.temperature, 1.0)[:, None]
    weights = jax.nn.softmax(logits / temperature)
    weights = jax.lax.cond(jnp.any(dials.top_p < 1), lambda: _nucleus(weights, dials.top_p), lambda: weights)
    uniform = jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))(
        dials.key, positions
    )
    cumulative = jnp.cumsum(weights, axis=-1)
    passed = jnp.sum(cumulative <= uniform[:, None] * cumulative[:, -1:], axis=-1, dtype=jnp.int32)
    return jnp.minimum(passed, logits.shape[-1] - 1)


def _nucleus(
    probabilities: Float[Array, "slots vocab"], top_p: Float[Array, " slots"]
) -> Float[Array, "slots vocab"]:
    """Zero all but the likeliest tokens that together reach `top_p`, without sorting.

    Bits of non-negative floats order like the floats, so 31 halvings find the highest probability whose
    "at least this likely" set still reaches top_p. Tokens tied with the last one stay in.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        mass = jnp.sum(jnp.where(bits >= middle[:, None], probabilities, 0.0), axis=-1)
        reaches = mass >= top_p
        return jnp.where(reaches, middle, low), jnp.where(reaches, high, middle)

    slots = probabilities.shape[0]
    one = jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32)
    start = (jnp.zeros(slots, jnp.int32), jnp.full(slots, one + 1))
    threshold, _ = jax.lax.fori_loop(0, 31, halve, start)
    return jnp.where(bits >= threshold[:, None], probabilities, 0.0)
