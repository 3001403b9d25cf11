"""Grug: the mixture-of-experts decoder, whole. Marin's June recipe, every part switched by its config field.

Block: a = GN(RMS(x)); x += attention(a); m = GN(RMS(x)); x += routed(m) + shared(m). The embedding's output
and the last hidden state pass the same norm. Parameters are float32, stacked over layers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lmlab.models.attention import attend
from lmlab.models.config import Grug, LayerPlan
from lmlab.models.experts import capacity_of, route, run_experts
from lmlab.models.layers import (
    QK_NORM_EPS,
    Cache,
    Context,
    Held,
    Normal,
    Output,
    Params,
    RouterStats,
    dot,
    draw,
    extended,
    rms,
    rope,
    share_heads,
    swiglu,
    walk_layers,
)


def init(config: Grug, key: Array) -> Params:
    """Truncated normal matrices (std 0.5 / sqrt(hidden)), unit norm weights, zero head gates and biases."""
    std, count, hidden = 0.5 / config.hidden**0.5, config.layers, config.hidden
    width, kv_width = config.heads * config.head_width, config.kv_heads * config.head_width

    def matrix(*shape: int) -> Normal:
        return Normal(shape, std)

    def norm(*stack: int) -> Params:
        gate = (
            {}
            if config.norm_gate_rank is None
            else {
                "down": matrix(*stack, hidden, config.norm_gate_rank),
                "up": matrix(*stack, config.norm_gate_rank, hidden),
            }
        )
        return {"weight": np.ones((*stack, hidden), np.float32), **gate}

    def swiglu(*stack: int, inner: int) -> Params:
        return {
            "gate": matrix(*stack, hidden, inner),
            "up": matrix(*stack, hidden, inner),
            "down": matrix(*stack, inner, hidden),
        }

    layers: Params = {
        "attention_norm": norm(count),
        "attention": {
            "q": matrix(count, hidden, width),
            "k": matrix(count, hidden, kv_width),
            "v": matrix(count, hidden, kv_width),
            "out": matrix(count, width, hidden),
        },
        "mlp_norm": norm(count),
        "router": matrix(count, hidden, config.experts),
        "experts": swiglu(count, config.experts, inner=config.expert_width),
    }
    if config.head_gate:
        layers["attention"]["head_gate"] = np.zeros((count, hidden, config.heads), np.float32)
    if config.shared_width is not None:
        layers["shared"] = swiglu(count, inner=config.shared_width)
    params = {
        "embed": {"weight": matrix(config.vocab, hidden), "norm": norm()},
        "layers": layers,
        "final_norm": norm(),
        "head": matrix(hidden, config.vocab),
        "router_bias": np.zeros((count, config.experts), np.float32),
    }
    return draw(params, key)


def forward(
    params: Params,
    config: Grug,
    tokens: Int[Array, "batch seq"],
    context: Context,
    cache: Cache | None,
) -> Output:
    """Hidden states of every token; padding (a segment id below 0) takes no expert's capacity."""
    held = None if cache is None else Held(cache.keys, cache.values)

    def block(x: Array, layer: Layer, plan: LayerPlan) -> tuple[Array, Any]:
        weights, bias, held = layer
        normed = gated_norm(config, weights["attention_norm"], x, context)
        mixed, held = _attention(config, weights["attention"], normed, context, held, plan)
        x = x + mixed
        normed = gated_norm(config, weights["mlp_norm"], x, context)
        capacity = capacity_of(config, normed.shape[0] * normed.shape[1], is_decoding=held is not None)
        routed, stats = _mixture(config, weights, bias, normed, context, capacity)
        return x + routed, (stats, held)

    x = gated_norm(config, params["embed"]["norm"], params["embed"]["weight"][tokens], context)
    stacked = (params["layers"], params["router_bias"], held)
    x, (stats, held) = walk_layers(block, x, stacked, config.layer_plan())
    hidden = gated_norm(config, params["final_norm"], x, context)
    return Output(hidden, extended(cache, held, tokens.shape[1]), stats)


Layer = tuple[Params, Float[Array, " experts"], Held | None]


def gated_norm(
    config: Grug, weights: Params, x: Float[Array, "batch seq hidden"], context: Context
) -> Float[Array, "batch seq hidden"]:
    """RMSNorm, then the low-rank gate n * sigmoid(silu(n down) up), which keeps activations bounded."""
    normed = rms(x, config.norm_eps) * weights["weight"]
    if config.norm_gate_rank is None:
        return normed
    inner = jax.nn.silu(dot(normed, weights["down"], context.dtype))
    return normed * jax.nn.sigmoid(dot(inner, weights["up"], context.dtype))


def _attention(
    config: Grug,
    weights: Params,
    x: Float[Array, "batch seq hidden"],
    context: Context,
    held: Held | None,
    plan: LayerPlan,
) -> tuple[Float[Array, "batch seq hidden"], Held | None]:
    q, k, v = _projections(config, weights, x, context, plan)
    how = {"window": plan.window, "is_bounded": config.qk_norm}
    out, held = attend(q, k, v, context, held=held, **how)
    if config.exclusive_attention:
        out = _exclude_own(out, v)
    if config.head_gate:
        out = out * 2 * jax.nn.sigmoid(dot(x, weights["head_gate"], jnp.float32))[..., None]
    return dot(out.reshape(*x.shape[:2], -1), weights["out"], context.dtype), held


def _projections(
    config: Grug, weights: Params, x: Array, context: Context, plan: LayerPlan
) -> tuple[Array, Array, Array]:
    """q (scaled), k and v per head, after QK-norm and RoPE."""
    joined = dot(x, jnp.concatenate([weights["q"], weights["k"], weights["v"]], axis=-1), context.dtype)
    heads = joined.reshape(*x.shape[:2], -1, config.head_width)
    q, k, v = jnp.split(heads, [config.heads, config.heads + config.kv_heads], axis=2)
    if config.qk_norm:
        q, k = rms(q, QK_NORM_EPS), rms(k, QK_NORM_EPS)
    if plan.rope:
        q, k = rope(q, context.turns), rope(k, context.turns)
    return q * (config.qk_mult / config.head_width**0.5), k, v


def _exclude_own(
    out: Float[Array, "batch seq heads head_dim"], v: Float[Array, "batch seq kv_heads head_dim"]
) -> Float[Array, "batch seq heads head_dim"]:
    """XSA: what a head reads from itself is already in the residual stream, so take it out."""
    direction = v * lax.rsqrt(jnp.sum(v * v, axis=-1, keepdims=True) + 1e-6)
    own = share_heads(direction, out.shape[2] // v.shape[2])
    return out - jnp.sum(out * own, axis=-1, keepdims=True) * own


def _mixture(
    config: Grug,
    weights: Params,
    bias: Float[Array, " experts"],
    x: Float[Array, "batch seq hidden"],
    context: Context,
    capacity: int,
) -> tuple[Float[Array, "batch seq hidden"], RouterStats]:
    """The routed experts, and the shared one that every token passes."""
    flat = x.reshape(-1, config.hidden)
    is_valid = (
        jnp.ones(flat.shape[0], bool) if context.segments is None else context.segments.reshape(-1) >= 0
    )
    routing = route(config, weights["router"], bias, flat, is_valid)
    out, dropped = run_experts(
        config, weights["experts"], flat, routing, is_valid, capacity=capacity, dtype=context.dtype
    )
    if config.shared_width is not None:
        out = out + swiglu(weights["shared"], flat, context.dtype)
    return out.reshape(x.shape), routing.stats._replace(dropped=dropped)


def router_bias_update(stats: RouterStats | None) -> Float[Array, "layers experts"] | None:
    """What the train state keeps as pending after a step; the next step starts with `apply_pending`."""
    return None if stats is None else stats.beta


def apply_pending(params: Params, pending: Float[Array, "layers experts"] | None) -> Params:
    """Set the routers' bias to -pending (before a forward pass, and before export); None changes nothing."""
    return params if pending is None else {**params, "router_bias": -pending}
