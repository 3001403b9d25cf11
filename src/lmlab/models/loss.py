"""Cross entropy per token in chunks, so that the scores of a whole batch never exist at once; bits per byte.

`mean_loss` (training) makes the head's gradient while a chunk's scores are at hand; `token_losses` (evals,
serving, preference losses) gives nats per token and recomputes scores when it is differentiated.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from lmlab.models.config import Model
from lmlab.models.decoder import forward, head
from lmlab.models.layers import Params, RouterStats, product_nn, product_nt, transpose_apart

CHUNK = 512
"""Tokens whose scores exist at once."""


class Batch(NamedTuple):
    """What a loss is computed on."""

    tokens: Int[Array, "batch seq"]
    targets: Int[Array, "batch seq"]
    weights: Float[Array, "batch seq"]
    """0 where there is nothing to predict: padding, the last token of a segment, prompts."""
    segments: Int[Array, "batch seq"] | None
    """Tokens see their own segment only; below 0 = padding."""


class Losses(NamedTuple):
    """What a training step logs besides the loss."""

    nats: Float[Array, "batch seq"]
    """Cross entropy of each target, 0 where its weight is 0."""
    router: RouterStats | None


def token_losses(
    params: Params,
    config: Model,
    batch: Batch,
    *,
    dtype: DTypeLike = jnp.bfloat16,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "batch seq"], RouterStats | None]:
    """Cross entropy of each target in nats, 0 where its weight is 0; differentiable in `params`."""
    out = forward(params, config, batch.tokens, segments=batch.segments, dtype=dtype)
    flat = out.hidden.reshape(-1, out.hidden.shape[-1])
    nats = cross_entropy(flat, head(params, config), batch.targets.reshape(-1), dtype=dtype, chunk=chunk)
    return jnp.where(batch.weights > 0, nats.reshape(batch.targets.shape), 0.0), out.router


def mean_loss(
    params: Params,
    config: Model,
    batch: Batch,
    *,
    dtype: DTypeLike = jnp.bfloat16,
    chunk: int = CHUNK,
    z_weight: float = 0.0,
) -> tuple[Float[Array, ""], Losses]:
    """The weighted mean of cross entropy + z_weight x logsumexp², for `jax.value_and_grad(…, has_aux=True)`.

    About an eighth faster than differentiating `token_losses`: the head's scores are computed once.
    """
    out = forward(params, config, batch.tokens, segments=batch.segments, dtype=dtype)
    flat = out.hidden.reshape(-1, out.hidden.shape[-1])
    weights = batch.weights.reshape(-1) / jnp.maximum(jnp.sum(batch.weights), 1e-9)
    how = (jnp.dtype(dtype), chunk, z_weight)
    loss, nats = _weighted_loss(how, flat, head(params, config), batch.targets.reshape(-1), weights)
    nats = jnp.where(batch.weights > 0, nats.reshape(batch.targets.shape), 0.0)
    return loss, Losses(lax.stop_gradient(nats), out.router)


def cross_entropy(
    hidden: Float[Array, "tokens hidden"],
    head: Float[Array, "hidden vocab"],
    targets: Int[Array, " tokens"],
    *,
    dtype: DTypeLike,
    chunk: int = CHUNK,
) -> Float[Array, " tokens"]:
    """Nats per token; the backward pass recomputes each chunk's scores."""

    @jax.checkpoint
    def one(weight: Array, rows: tuple[Array, Array]) -> Array:
        scores = product_nn(rows[0].astype(dtype), weight)
        return jax.nn.logsumexp(scores, axis=-1) - _pick(scores, rows[1])

    parts = _chunks(chunk, hidden, targets)
    weight = head.astype(dtype)
    return lax.map(partial(one, weight), parts).reshape(-1)[: targets.shape[0]]


How = tuple[jnp.dtype, int, float]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_loss(
    how: How, hidden: Array, head: Array, targets: Array, weights: Array
) -> tuple[Float[Array, ""], Float[Array, " tokens"]]:
    dtype, chunk, z_weight = how
    weight = head.astype(dtype)

    def one(rows: tuple[Array, Array]) -> tuple[Array, Array]:
        scores = product_nn(rows[0].astype(dtype), weight)
        total = jax.nn.logsumexp(scores, axis=-1)
        return total - _pick(scores, rows[1]), total

    nats, totals = lax.map(one, _chunks(chunk, hidden, targets))
    nats, totals = nats.reshape(-1)[: targets.shape[0]], totals.reshape(-1)[: targets.shape[0]]
    return jnp.sum(weights * (nats + z_weight * totals**2)), nats


def _weighted_forward(
    how: How, hidden: Array, head: Array, targets: Array, weights: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    dtype, chunk, z_weight = how
    weight = head.astype(dtype)

    def one(
        carried: tuple[Array, Array], rows: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        loss, to_head = carried
        x, target, share = rows[0].astype(dtype), rows[1], rows[2][:, None]
        scores = product_nn(x, weight)
        total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        nats = total[:, 0] - _pick(scores, target)
        is_target = jnp.arange(scores.shape[1]) == target[:, None]
        slope = jnp.exp(scores - total) * (1 + 2 * z_weight * total) - is_target
        slope = (share * slope).astype(dtype)
        to_head = to_head + product_nn(transpose_apart(x), slope)
        loss = loss + jnp.sum(share[:, 0] * (nats + z_weight * total[:, 0] ** 2))
        return (loss, to_head), (product_nt(slope, weight), nats)

    start = (jnp.zeros((), jnp.float32), jnp.zeros(head.shape, jnp.float32))
    (loss, to_head), (to_hidden, nats) = lax.scan(one, start, _chunks(chunk, hidden, targets, weights))
    to_hidden = to_hidden.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return (loss, nats.reshape(-1)[: targets.shape[0]]), (to_hidden, to_head)


def _weighted_backward(
    how: How, saved: tuple[Array, Array], grads: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    del how  # the slope was taken in the forward pass
    return grads[0] * saved[0], grads[0] * saved[1], None, None


_weighted_loss.defvjp(_weighted_forward, _weighted_backward)


def _pick(scores: Float[Array, "tokens vocab"], targets: Int[Array, " tokens"]) -> Float[Array, " tokens"]:
    return jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0]


def _chunks(chunk: int, *arrays: Array) -> Any:
    """Cut axis 0 into chunks of equal size, the last one padded with zeros."""
    tokens = arrays[0].shape[0]
    count = math.ceil(tokens / chunk)
    size = math.ceil(tokens / count)
    padded = [jnp.pad(a, [(0, count * size - tokens)] + [(0, 0)] * (a.ndim - 1)) for a in arrays]
    return tuple(a.reshape(count, size, *a.shape[1:]) for a in padded)


def bits_per_byte(nats: Float[Array, "..."] | float, n_bytes: int) -> float:
    """Summed nats as bits per UTF-8 byte of the text that they predict.

    >>> round(bits_per_byte(math.log(2) * 12.0, 8), 3)
    1.5
    """
    return float(jnp.sum(jnp.asarray(nats))) / math.log(2) / n_bytes
