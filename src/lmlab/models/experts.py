"""Routing tokens to experts, and the experts themselves as one capacity-padded batched product.

Assignments are sorted by (expert, position); an expert has room for its capacity, what comes later is dropped
and counted. Moving rows is a gather in both directions: each knows the other's index, so no scatter runs.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lmlab.models.config import Experts, Grug
from lmlab.models.layers import Params, RouterStats, added, batched_dot, dot, silu_gated


class Routing(NamedTuple):
    """Who goes where."""

    experts: Int[Array, "tokens top_k"]
    weights: Float[Array, "tokens top_k"]
    """Combine weights; a token's add up to `combine_scale`."""
    stats: RouterStats


def route(
    config: Grug,
    router: Float[Array, "hidden experts"],
    bias: Float[Array, " experts"],
    x: Float[Array, "tokens hidden"],
    is_valid: Bool[Array, " tokens"],
) -> Routing:
    """Choose each token's experts by biased logits, weigh them by unbiased ones (sigmoid), in float32."""
    logits = dot(x, router, jnp.float32)
    biased = logits + lax.stop_gradient(bias)
    scores, order = lax.top_k(lax.stop_gradient(biased), config.top_k + 1)
    chosen, threshold = order[:, :-1], scores[:, -1:]
    is_chosen = jax.nn.one_hot(chosen, config.experts, dtype=jnp.float32)
    gates = jax.nn.sigmoid(jnp.einsum("tke,te->tk", is_chosen, logits))
    weights = config.combine_scale * gates / (jnp.sum(gates, axis=-1, keepdims=True) + 1e-9)
    stats = _stats(config, lax.stop_gradient(logits), threshold, jnp.sum(is_chosen, axis=1), is_valid)
    return Routing(chosen, weights, stats)


def _stats(
    config: Grug,
    logits: Float[Array, "tokens experts"],
    threshold: Float[Array, "tokens 1"],
    is_chosen: Float[Array, "tokens experts"],
    is_valid: Bool[Array, " tokens"],
) -> RouterStats:
    """Load, entropy and the quantile that would balance the load, over valid tokens only."""
    tokens = jnp.sum(is_valid)
    at_least_one = jnp.maximum(tokens, 1)
    probabilities = jax.nn.softmax(logits, axis=-1) * is_valid[:, None]
    mean_probability = jnp.sum(probabilities, axis=0) / at_least_one
    load = jnp.sum(is_chosen * is_valid[:, None], axis=0)
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    entropy = logsumexp - jnp.sum(jax.nn.softmax(logits, axis=-1) * logits, axis=-1)
    share = load / (at_least_one * config.top_k)
    return RouterStats(
        beta=_quantile_bias(config, logits - threshold, is_valid, tokens),
        counts=load.astype(jnp.int32),
        dropped=jnp.zeros((), jnp.int32),  # known after the experts ran
        entropy=jnp.sum(entropy * is_valid) / at_least_one,
        load_balance=config.experts * jnp.sum(share * mean_probability),
        z=jnp.sum(jnp.square(logsumexp) * is_valid) / at_least_one,
    )


def _quantile_bias(
    config: Grug,
    margins: Float[Array, "tokens experts"],
    is_valid: Bool[Array, " tokens"],
    tokens: Int[Array, ""],
) -> Float[Array, " experts"]:
    """Per expert, the (tokens x top_k / experts)-th largest margin over the threshold; 0 without tokens."""
    if not config.router_balance:
        return jnp.zeros(config.experts, jnp.float32)
    rank = jnp.maximum(tokens * config.top_k // config.experts, 1)
    return jnp.where(tokens > 0, kth_largest(jnp.where(is_valid[:, None], margins, -jnp.inf), rank), 0.0)


def kth_largest(values: Float[Array, "rows columns"], rank: Int[Array, ""]) -> Float[Array, " columns"]:
    """The `rank`-th largest value (from 1) of each column, exact: bisection over the bits of the numbers.

    32 counting passes cost a tenth of sorting on CPU.
    """
    bits = lax.bitcast_convert_type(values, jnp.int32)
    ordered = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of their floats

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # at least `rank` values are >= low, fewer are > high
        middle = (low | high) - ((low ^ high) >> 1)  # the mean, rounded up, without overflow
        is_enough = jnp.sum(ordered >= middle, axis=0) >= rank
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle - 1)

    limits = jnp.iinfo(jnp.int32)
    columns = values.shape[1]
    start = jnp.full(columns, limits.min, jnp.int32), jnp.full(columns, limits.max, jnp.int32)
    found, _ = lax.fori_loop(0, 32, halve, start)
    return lax.bitcast_convert_type(jnp.where(found < 0, found ^ 0x7FFFFFFF, found), jnp.float32)


def run_experts(
    config: Grug,
    weights: Params,
    x: Float[Array, "tokens hidden"],
    routing: Routing,
    is_valid: Bool[Array, " tokens"],
    *,
    capacity: int,
    dtype: DTypeLike,
) -> tuple[Float[Array, "tokens hidden"], Int[Array, ""]]:
    """The weighted sum of each token's experts, and how many assignments were dropped."""
    if config.experts_by is Experts.DENSE:
        return _run_dense(config, weights, x, routing, is_valid, dtype), jnp.zeros((), jnp.int32)
    slots = assign(routing.experts, is_valid, config.experts, capacity)
    rows = _dispatch(x.astype(dtype), slots).reshape(config.experts, capacity, -1)
    out = swiglu_experts(weights, rows, dtype).reshape(config.experts * capacity, -1)
    dropped = jnp.sum(is_valid) * config.top_k - jnp.sum(slots.is_kept)
    return _combine(out, routing.weights, slots), dropped.astype(jnp.int32)


def swiglu_experts(
    weights: Params, rows: Float[Array, "experts capacity hidden"], dtype: DTypeLike
) -> Float[Array, "experts capacity hidden"]:
    """silu(x gate) * (x up), then down, per expert."""
    inner = batched_dot(rows, jnp.concatenate([weights["gate"], weights["up"]], axis=-1), dtype)
    return batched_dot(silu_gated(inner), weights["down"], dtype)


def _run_dense(
    config: Grug, weights: Params, x: Array, routing: Routing, is_valid: Array, dtype: DTypeLike
) -> Array:
    rows = jnp.broadcast_to(x, (config.experts, *x.shape))
    out = swiglu_experts(weights, rows, dtype)
    combine = jnp.einsum(
        "tk,tke->te", routing.weights, jax.nn.one_hot(routing.experts, config.experts, dtype=jnp.float32)
    )
    return jnp.einsum("te,etd->td", combine * is_valid[:, None], out)


def capacity_of(config: Grug, tokens: int, *, is_decoding: bool) -> int:
    """Slots of each expert for a batch of that many tokens; in decoding, enough for all of them."""
    if is_decoding:
        return tokens
    return min(tokens, math.ceil(config.capacity_factor * tokens * config.top_k / config.experts))


class Slots(NamedTuple):
    """Both directions of the move between tokens and the experts' slots."""

    token: Int[Array, " slots"]
    """Whose row stands in a slot."""
    choice: Int[Array, " slots"]
    """Which of that token's choices it is."""
    is_filled: Bool[Array, " slots"]
    slot: Int[Array, "tokens top_k"]
    """Where a token's row went."""
    is_kept: Bool[Array, "tokens top_k"]


def assign(
    experts: Int[Array, "tokens top_k"], is_valid: Bool[Array, " tokens"], count: int, capacity: int
) -> Slots:
    """Fill the experts' slots in order of position; padding takes none."""
    tokens, top_k = experts.shape
    flat = jnp.where(is_valid[:, None], experts, count).reshape(-1)
    order = jnp.argsort(flat, stable=True)
    load = jnp.sum(flat[:, None] == jnp.arange(count), axis=0)
    starts = jnp.cumsum(load) - load
    place = jnp.arange(capacity)
    is_filled = place < load[:, None]
    source = order[jnp.where(is_filled, starts[:, None] + place, 0).reshape(-1)]
    places = jnp.arange(order.shape[0])
    position = jnp.zeros_like(order).at[order].set(places, unique_indices=True).reshape(tokens, top_k)
    rank = position - jnp.take(starts, experts)
    is_kept = is_valid[:, None] & (rank < capacity)
    slot = jnp.where(is_kept, experts * capacity + rank, 0)
    return Slots(source // top_k, source % top_k, is_filled.reshape(-1), slot, is_kept)


@jax.custom_vjp
def _dispatch(x: Float[Array, "tokens hidden"], slots: Slots) -> Float[Array, "slots hidden"]:
    return jnp.where(slots.is_filled[:, None], x[slots.token], 0)


def _dispatch_forward(x: Array, slots: Slots) -> tuple[Array, Slots]:
    return _dispatch(x, slots), slots


def _dispatch_backward(slots: Slots, grad: Array) -> tuple[Array, None]:
    return added([jnp.where(is_kept[:, None], grad[slot], 0) for slot, is_kept in _choices(slots)]), None


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)


@jax.custom_vjp
def _combine(
    out: Float[Array, "slots hidden"], weights: Float[Array, "tokens top_k"], slots: Slots
) -> Float[Array, "tokens hidden"]:
    kept = jnp.where(slots.is_kept, weights, 0).T
    return added([share[:, None] * out[slot] for share, slot in zip(kept, slots.slot.T, strict=True)])


def _combine_forward(out: Array, weights: Array, slots: Slots) -> tuple[Array, tuple[Array, Array, Slots]]:
    return _combine(out, weights, slots), (out, weights, slots)


def _combine_backward(saved: tuple[Array, Array, Slots], grad: Array) -> tuple[Array, Array, None]:
    out, weights, slots = saved
    weight = jnp.where(slots.is_filled, weights[slots.token, slots.choice], 0)
    to_weights = jnp.stack([jnp.sum(grad * out[slot], axis=-1) for slot, _ in _choices(slots)], axis=1)
    return weight[:, None] * grad[slots.token], jnp.where(slots.is_kept, to_weights, 0), None


_combine.defvjp(_combine_forward, _combine_backward)


def _choices(slots: Slots) -> list[tuple[Array, Array]]:
    """Per choice, every token's slot and whether it was kept; k gathers added beat one reduced."""
    return list(zip(slots.slot.T, slots.is_kept.T, strict=True))
