"""Causal attention over segments and windows: training's in blocks with its own gradient, and a cached one.

Blocks of queries meet only the keys that they may see, so causality and windows save work and not only
results. The gradient keeps the probabilities and puts every product in a form that is fast (see `dot`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lmlab.models.layers import Context, Held, product_nn, product_nt, transpose_apart

BLOCK = 128
"""Queries in a block: at 256 and 512 tokens 64 was as fast (but compiles longer), 256 was 6 % slower."""

How = tuple[int | None, Any, bool]
"""Window, operand type, and whether scores are bounded."""


def attend(
    q: Float[Array, "batch seq heads head_dim"],
    k: Float[Array, "batch seq kv_heads head_dim"],
    v: Float[Array, "batch seq kv_heads head_dim"],
    context: Context,
    *,
    window: int | None,
    is_bounded: bool,
    held: Held | None = None,
) -> tuple[Float[Array, "batch seq heads head_dim"], Held | None]:
    """softmax(q k^T) v, causal, inside each segment and window; `q` comes scaled.

    With `held`, k and v are first written behind what it holds, and q sees all of that. `is_bounded` promises
    |q·k| < 80, as QK-norm does, so that training's softmax needs no maximum.
    """
    if held is None:
        how = (window, jnp.dtype(context.dtype), is_bounded)
        return _in_blocks(how, q, k, v, context.segments), None
    start = context.positions[:, 0]
    held = Held(_append(held.keys, k, start), _append(held.values, v, start))
    return _attend_held(q, held, context, window), held


def _in_blocks(
    how: How,
    q: Float[Array, "batch seq heads head_dim"],
    k: Float[Array, "batch seq kv_heads head_dim"],
    v: Float[Array, "batch seq kv_heads head_dim"],
    segments: Int[Array, "batch seq"] | None,
) -> Float[Array, "batch seq heads head_dim"]:
    batch, seq, heads, width = q.shape
    rows = batch * k.shape[2]
    grouped = q.transpose(0, 2, 1, 3).reshape(rows, -1, seq, width)
    keys, values = (part.transpose(0, 2, 1, 3).reshape(rows, seq, width) for part in (k, v))
    out = _attend(how, grouped, keys, values, segments)
    return out.reshape(batch, heads, seq, width).transpose(0, 2, 1, 3)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    how: How,
    q: Float[Array, "rows groups seq head_dim"],
    k: Float[Array, "rows seq head_dim"],
    v: Float[Array, "rows seq head_dim"],
    segments: Int[Array, "batch seq"] | None,
) -> Float[Array, "rows groups seq head_dim"]:
    """Attention of one key-value head a row; its groups of query heads become more rows of each product."""
    return _attend_forward(how, q, k, v, segments)[0]


def _attend_forward(
    how: How, q: Array, k: Array, v: Array, segments: Array | None
) -> tuple[Array, tuple[Any, ...]]:
    window, dtype, is_bounded = how
    q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    outs, saved = [], []
    for start, stop, first in _blocks(q.shape[2], window):
        scores = product_nt(_fold(q[:, :, start:stop]), k[:, first:stop])
        mask = _mask(start, stop, first, window, segments)
        weights, total = _weights(scores, mask, is_bounded=is_bounded, dtype=dtype)
        out = product_nn(weights, v[:, first:stop]) / total
        outs.append(out.reshape(*q.shape[:2], stop - start, -1))
        saved.append((weights, total))
    out = jnp.concatenate(outs, axis=2)
    return out, (q, k, v, out, saved)


def _weights(
    scores: Float[Array, "rows queries keys"],
    mask: Bool[Array, "batch 1 block keys"],
    *,
    is_bounded: bool,
    dtype: Any,
) -> tuple[Array, Float[Array, "rows queries 1"]]:
    """exp(scores) where seen, in `dtype`, and its sums; dividing by them is left to the narrow output."""
    shaped = scores.reshape(mask.shape[0], -1, *mask.shape[2:])
    peak = 0.0 if is_bounded else jnp.max(jnp.where(mask, shaped, -jnp.inf), axis=-1, keepdims=True)
    weights = jnp.where(mask, jnp.exp(shaped - peak), 0.0).astype(dtype).reshape(scores.shape)
    ones = jnp.ones((scores.shape[0], scores.shape[2], 1), dtype)
    return weights, product_nn(weights, ones)


def _attend_backward(how: How, residuals: tuple[Any, ...], grad: Array) -> tuple[Any, ...]:
    window, dtype, _ = how
    q, k, v, out, saved = residuals
    grad_q, grad_k, grad_v = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    for (start, stop, first), (weights, total) in zip(_blocks(q.shape[2], window), saved, strict=True):
        scaled = _fold(grad[:, :, start:stop]) / total
        along = jnp.sum(scaled * _fold(out[:, :, start:stop]), axis=-1, keepdims=True)
        scaled = scaled.astype(dtype)
        inner = product_nt(scaled, v[:, first:stop])
        grad_scores = (weights.astype(jnp.float32) * (inner - along)).astype(dtype)
        grad_q.append(product_nn(grad_scores, k[:, first:stop]).reshape(*q.shape[:2], stop - start, -1))
        # Keys' and values' gradients come out transposed, so that only narrow arrays are ever swapped.
        to_k = product_nn(transpose_apart(_fold(q[:, :, start:stop])), grad_scores)
        to_v = product_nn(transpose_apart(scaled), weights)
        grad_k = grad_k.at[:, first:stop].add(to_k.swapaxes(-1, -2))
        grad_v = grad_v.at[:, first:stop].add(to_v.swapaxes(-1, -2))
    return jnp.concatenate(grad_q, axis=2), grad_k, grad_v, None


_attend.defvjp(_attend_forward, _attend_backward)


def _blocks(seq: int, window: int | None) -> list[tuple[int, int, int]]:
    """(first query, end, first key) of each block."""
    spans = [(start, min(start + BLOCK, seq)) for start in range(0, seq, BLOCK)]
    reach = seq if window is None else window - 1
    # The first key is rounded down: widths that are no multiple of a vector cost more than they save.
    return [(start, stop, max(0, start - reach) // 64 * 64) for start, stop in spans]


def _fold(x: Float[Array, "rows groups queries head_dim"]) -> Float[Array, "rows folded head_dim"]:
    return x.reshape(x.shape[0], -1, x.shape[3])


def _mask(
    start: int, stop: int, first: int, window: int | None, segments: Array | None
) -> Bool[Array, "batch 1 block keys"]:
    queries, keys = jnp.arange(start, stop)[:, None], jnp.arange(first, stop)
    seen = keys <= queries
    if window is not None:
        seen &= keys > queries - window
    if segments is None:
        return seen[None, None]
    same = segments[:, start:stop, None] == segments[:, None, first:stop]
    return (seen & same)[:, None]


def _attend_held(
    q: Float[Array, "batch seq heads head_dim"], held: Held, context: Context, window: int | None
) -> Float[Array, "batch seq heads head_dim"]:
    keys, values = (part.astype(context.dtype) for part in held)
    grouped = q.reshape(*q.shape[:2], keys.shape[2], -1, q.shape[3]).astype(context.dtype)
    scores = jnp.einsum("bsmgd,blmd->bmgsl", grouped, keys, preferred_element_type=jnp.float32)
    places, now = jnp.arange(keys.shape[1]), context.positions[:, :, None]
    is_seen = places <= now
    if window is not None:
        is_seen &= places > now - window
    weights = jax.nn.softmax(jnp.where(is_seen[:, None, None], scores, -jnp.inf), axis=-1)
    weights = weights.astype(context.dtype)
    out = jnp.einsum("bmgsl,blmd->bsmgd", weights, values, preferred_element_type=jnp.float32)
    return out.reshape(q.shape)


def _append(
    held: Float[Array, "batch length kv_heads head_dim"],
    new: Float[Array, "batch seq kv_heads head_dim"],
    start: Int[Array, " batch"],
) -> Float[Array, "batch length kv_heads head_dim"]:
    """Write each row's new entries from its own place on."""
    write = jax.vmap(lambda row, entry, at: lax.dynamic_update_slice(row, entry, (at, 0, 0)))
    return write(held, new.astype(held.dtype), start)
