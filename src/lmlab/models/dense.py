"""Dense: a Llama- or Qwen3-like decoder, whole: x += attention(RMS(x)); x += swiglu(RMS(x))."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lmlab.models.attention import attend
from lmlab.models.config import Dense, LayerPlan
from lmlab.models.layers import (
    Cache,
    Context,
    Held,
    Normal,
    Output,
    Params,
    dot,
    draw,
    extended,
    rms,
    rope,
    swiglu,
    walk_layers,
)


def init(config: Dense, key: Array) -> Params:
    """Truncated normal matrices (std 0.02, those that write to the stream divided by sqrt(2 layers))."""
    count, hidden = config.layers, config.hidden
    width, kv_width = config.heads * config.head_width, config.kv_heads * config.head_width
    writes = 0.02 / (2 * count) ** 0.5

    def matrix(*shape: int, std: float = 0.02) -> Normal:
        return Normal(shape, std)

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, np.float32)

    attention: Params = {
        "q": matrix(count, hidden, width),
        "k": matrix(count, hidden, kv_width),
        "v": matrix(count, hidden, kv_width),
        "out": matrix(count, width, hidden, std=writes),
    }
    if config.biases:
        widths = {"q": width, "k": kv_width, "v": kv_width, "out": hidden}
        attention |= {f"{name}_bias": np.zeros((count, size), np.float32) for name, size in widths.items()}
    if config.qk_norm:
        attention |= {"q_norm": ones(count, config.head_width), "k_norm": ones(count, config.head_width)}
    mlp = {
        "gate": matrix(count, hidden, config.mlp_width),
        "up": matrix(count, hidden, config.mlp_width),
        "down": matrix(count, config.mlp_width, hidden, std=writes),
    }
    norms = {"attention_norm": ones(count, hidden), "mlp_norm": ones(count, hidden)}
    params: Params = {
        "embed": {"weight": matrix(config.vocab, hidden)},
        "layers": {"attention": attention, "mlp": mlp, **norms},
        "final_norm": ones(hidden),
    }
    return draw(params if config.tied else {**params, "head": matrix(hidden, config.vocab)}, key)


def forward(
    params: Params,
    config: Dense,
    tokens: Int[Array, "batch seq"],
    context: Context,
    cache: Cache | None,
) -> Output:
    """Hidden states of every token."""
    held = None if cache is None else Held(cache.keys, cache.values)

    def block(x: Array, layer: tuple[Params, Held | None], plan: LayerPlan) -> tuple[Array, Held | None]:
        weights, held = layer
        normed = rms(x, config.norm_eps) * weights["attention_norm"]
        mixed, held = _attention(config, weights["attention"], normed, context, held, plan)
        x = x + mixed
        normed = rms(x, config.norm_eps) * weights["mlp_norm"]
        return x + swiglu(weights["mlp"], normed, context.dtype), held

    x = params["embed"]["weight"][tokens]
    x, held = walk_layers(block, x, (params["layers"], held), config.layer_plan())
    hidden = rms(x, config.norm_eps) * params["final_norm"]
    return Output(hidden, extended(cache, held, tokens.shape[1]), None)


def _attention(
    config: Dense,
    weights: Params,
    x: Float[Array, "batch seq hidden"],
    context: Context,
    held: Held | None,
    plan: LayerPlan,
) -> tuple[Float[Array, "batch seq hidden"], Held | None]:
    q, k, v = _projections(config, weights, x, context)
    out, held = attend(q, k, v, context, window=plan.window, is_bounded=False, held=held)
    out = dot(out.reshape(*x.shape[:2], -1), weights["out"], context.dtype)
    return out + weights["out_bias"] if config.biases else out, held


def _projections(config: Dense, weights: Params, x: Array, context: Context) -> tuple[Array, Array, Array]:
    """q (scaled), k and v per head, after QK-norm and RoPE."""
    names = ("q", "k", "v")
    joined = dot(x, jnp.concatenate([weights[name] for name in names], axis=-1), context.dtype)
    if config.biases:
        joined = joined + jnp.concatenate([weights[f"{name}_bias"] for name in names], axis=-1)
    heads = joined.reshape(*x.shape[:2], -1, config.head_width)
    q, k, v = jnp.split(heads, [config.heads, config.heads + config.kv_heads], axis=2)
    if config.qk_norm:
        q = rms(q, config.norm_eps) * weights["q_norm"]
        k = rms(k, config.norm_eps) * weights["k_norm"]
    return rope(q, context.turns) / config.head_width**0.5, rope(k, context.turns), v
