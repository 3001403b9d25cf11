"""Pieces that both architectures are made of: matrix products, norms, RoPE, attention, walking the layers.

Products take bfloat16 operands (or float32, as asked) and give float32; everything between them is float32.
How a product is written decides its speed on XLA's CPU backend, so that choice stands once, in `dot`.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from lmlab.models.config import LayerPlan

Params = dict[str, Any]
"""Nested dicts of float32 arrays; what stands under "layers" is stacked on axis 0."""

QK_NORM_EPS = 1e-6


class RouterStats(NamedTuple):
    """What the routers did in one forward pass, per layer; numbers to log, and the bias to come."""

    beta: Float[Array, "layers experts"]
    """Pending: the next step's bias is -beta (quantile balancing)."""
    counts: Int[Array, "layers experts"]
    """Assignments of valid tokens to each expert, before anything is dropped."""
    dropped: Int[Array, " layers"]
    """Assignments that found their expert full."""
    entropy: Float[Array, " layers"]
    """Mean entropy of softmax(logits), in nats."""
    load_balance: Float[Array, " layers"]
    """experts x sum of (share of assignments x mean probability): 1 when even. Logged, not a loss."""
    z: Float[Array, " layers"]
    """Mean squared logsumexp of the logits. Logged, not a loss."""


class Cache(NamedTuple):
    """Keys and values of what was read so far, one row per sequence, each with its own length."""

    keys: Float[Array, "layers batch length kv_heads head_dim"]
    values: Float[Array, "layers batch length kv_heads head_dim"]
    lengths: Int[Array, " batch"]
    """Positions that hold something; the next token of a row is written there."""


class Held(NamedTuple):
    """One layer's part of a cache."""

    keys: Float[Array, "batch length kv_heads head_dim"]
    values: Float[Array, "batch length kv_heads head_dim"]


def extended(cache: Cache | None, held: Held | None, tokens: int) -> Cache | None:
    """The cache after a forward pass over `tokens` more positions in each row."""
    if cache is None or held is None:
        return None
    return Cache(held.keys, held.values, cache.lengths + tokens)


class Output(NamedTuple):
    """What `forward` gives."""

    hidden: Float[Array, "batch seq hidden"]
    """After the final norm, ready for the LM head."""
    cache: Cache | None
    router: RouterStats | None
    """None for dense models."""


class Turns(NamedTuple):
    """RoPE's rotation at each position: made once for all layers, since sines are slow."""

    cos: Float[Array, "batch seq pairs"]
    sin: Float[Array, "batch seq pairs"]


class Context(NamedTuple):
    """What every layer of one forward pass shares."""

    positions: Int[Array, "batch seq"]
    segments: Int[Array, "batch seq"] | None
    """A token sees its own segment only; below 0 = padding."""
    turns: Turns
    dtype: DTypeLike
    """Operands of the matrix products."""


def dot(
    x: Float[Array, "*rows inner"], weight: Float[Array, "inner outer"], dtype: DTypeLike
) -> Float[Array, "*rows outer"]:
    """x @ weight with operands in `dtype` and a float32 result, in the fastest form for each gradient."""
    flat = x.reshape(-1, x.shape[-1])
    return _product(flat, weight, jnp.dtype(dtype)).reshape(*x.shape[:-1], weight.shape[-1])


def batched_dot(
    x: Float[Array, "experts rows inner"], weight: Float[Array, "experts inner outer"], dtype: DTypeLike
) -> Float[Array, "experts rows outer"]:
    """`dot` for each expert's own rows and weight."""
    return _product(x, weight, jnp.dtype(dtype))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, dtype: jnp.dtype) -> Array:
    return product_nn(x.astype(dtype), weight.astype(dtype))


def _product_forward(x: Array, weight: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    saved = x.astype(dtype), weight.astype(dtype)
    return product_nn(*saved), saved


def _product_backward(dtype: jnp.dtype, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = saved
    grad = grad.astype(dtype)
    if grad.shape[-1] < x.shape[-1]:  # only the narrower of the two is swapped in memory
        to_weight = product_nn(transpose_apart(grad), x).swapaxes(-1, -2)
    else:
        to_weight = product_nn(transpose_apart(x), grad)
    return product_nt(grad, weight), to_weight


_product.defvjp(_product_forward, _product_backward)


def product_nn(a: Float[Array, "*batch m k"], b: Float[Array, "*batch k n"]) -> Float[Array, "*batch m n"]:
    """a @ b in float32, rows times columns."""
    return _general(a, b, a.ndim - 1, b.ndim - 2)


def product_nt(a: Float[Array, "*batch m k"], b: Float[Array, "*batch n k"]) -> Float[Array, "*batch m n"]:
    """a @ b^T in float32, rows times rows."""
    return _general(a, b, a.ndim - 1, b.ndim - 1)


def _general(a: Array, b: Array, contract_a: int, contract_b: int) -> Array:
    batch = tuple(range(a.ndim - 2))
    dims = (((contract_a,), (contract_b,)), (batch, batch))
    return _in_rows(lax.dot_general(_in_rows(a), _in_rows(b), dims, preferred_element_type=jnp.float32))


def transpose_apart(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """x with its last two axes swapped in memory, as a copy of its own.

    On CPU, XLA folds a plain transpose into the product after it, and for that form (TN, every gradient of a
    weight) it has no bfloat16 kernel: operands go back to float32 and through the slowest path.
    GF per CPU-second, jaxlib 0.10.2, AMD avx512_bf16, 4096x256 by 4096x1024 | 1024x256 by 1024x8192: TN
    bfloat16 178 | 112, TN float32 204 | 175, copy and NN 373 | 399; NN alone 463 | 341, NT 470 | 396.
    """
    return _in_rows(x.swapaxes(-1, -2))


def _in_rows(x: Array) -> Array:
    """Pin the memory layout on CPU: XLA's bfloat16 kernels read and write rows only.

    Left to itself the compiler may give a product columns (say, where its result is transposed next), and the
    program then fails at run time: "Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32".
    """
    if jax.default_backend() != "cpu":
        return x
    pinned = with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))
    # The factor is compiled away. Without it a pinned array that leaves a jit turns on automatic layouts, and
    # jax 0.10.2 then hands out other results in columns that it takes for rows: silently wrong numbers.
    return pinned * 1


def swiglu(
    weights: Params, x: Float[Array, "*rows hidden"], dtype: DTypeLike
) -> Float[Array, "*rows hidden"]:
    """silu(x gate) * (x up), then down."""
    inner = dot(x, jnp.concatenate([weights["gate"], weights["up"]], axis=-1), dtype)
    return dot(silu_gated(inner), weights["down"], dtype)


@jax.custom_vjp
def silu_gated(x: Float[Array, "*rows double"]) -> Float[Array, "*rows single"]:
    """silu(first half) * second half; saves its input only, so that it is one pass each way."""
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


def _silu_gated_backward(x: Array, grad: Array) -> tuple[Array]:
    gate, up = jnp.split(x, 2, axis=-1)
    open_share = jax.nn.sigmoid(gate)
    to_gate = grad * up * open_share * (1 + gate * (1 - open_share))
    return (jnp.concatenate([to_gate, grad * gate * open_share], axis=-1),)


silu_gated.defvjp(lambda x: (silu_gated(x), x), _silu_gated_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def share_heads(
    x: Float[Array, "batch seq kv_heads head_dim"], groups: int
) -> Float[Array, "batch seq heads head_dim"]:
    """Repeat each key-value head for the query heads that share it."""
    return jnp.repeat(x, groups, axis=2)


def _share_heads_backward(groups: int, saved: None, grad: Array) -> tuple[Array]:
    del saved
    parts = grad.reshape(*grad.shape[:2], -1, groups, grad.shape[3])
    # Added one by one: as a reduction over an inner axis, XLA's CPU backend takes ten times as long.
    return (added([parts[:, :, :, group] for group in range(groups)]),)


def added(parts: list[Array]) -> Array:
    """Their sum, as one fused pass."""
    return reduce(jnp.add, parts)


share_heads.defvjp(lambda x, groups: (share_heads(x, groups), None), _share_heads_backward)


def rms(x: Float[Array, "*rows width"], eps: float) -> Float[Array, "*rows width"]:
    """x over its root mean square, in float32."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def turns_at(positions: Int[Array, "batch seq"], theta: float, rotary_width: int) -> Turns:
    """The rotations that RoPE applies at these positions."""
    pairs = rotary_width // 2
    frequencies = theta ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return Turns(jnp.cos(angles), jnp.sin(angles))


@jax.custom_vjp
def rope(
    x: Float[Array, "batch seq heads head_dim"], turns: Turns
) -> Float[Array, "batch seq heads head_dim"]:
    """Turn the leading channels of each head, paired as halves as Hugging Face does."""
    cos, sin = turns.cos[:, :, None], turns.sin[:, :, None]
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _rope_backward(turns: Turns, grad: Array) -> tuple[Array, None]:
    return rope(grad, Turns(turns.cos, -turns.sin)), None


rope.defvjp(lambda x, turns: (rope(x, turns), turns), _rope_backward)


class Normal(NamedTuple):
    """A parameter to be drawn: normal numbers cut at three standard deviations."""

    shape: tuple[int, ...]
    std: float


def draw(tree: Params, key: Array) -> Params:
    """Fill in every `Normal` of the tree, all from one long draw: one by one they compile for 6 s."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, Normal))
    wanted = tuple(leaf for leaf in leaves if isinstance(leaf, Normal))
    drawn = iter(_draw_all(wanted, key))
    return structure.unflatten(
        [next(drawn) if isinstance(leaf, Normal) else jnp.asarray(leaf) for leaf in leaves]
    )


@partial(jax.jit, static_argnums=0)
def _draw_all(wanted: tuple[Normal, ...], key: Array) -> list[Array]:
    sizes = [math.prod(normal.shape) for normal in wanted]
    parts = lax.split(jax.random.truncated_normal(key, -3.0, 3.0, (sum(sizes),), jnp.float32), sizes)
    return [normal.std * part.reshape(normal.shape) for normal, part in zip(wanted, parts, strict=True)]


def walk_layers(
    body: Callable[[Array, Any, LayerPlan], tuple[Array, Any]],
    x: Float[Array, "batch seq hidden"],
    stacked: Any,
    plans: tuple[LayerPlan, ...],
) -> tuple[Float[Array, "batch seq hidden"], Any]:
    """Run `body` layer by layer over params (and cache) stacked on axis 0; its extras come back stacked."""
    leaves, tree = jax.tree.flatten(stacked)
    split = [_unstack(leaf) for leaf in leaves]
    extras = []
    for layer, plan in enumerate(plans):
        x, extra = body(x, tree.unflatten([parts[layer] for parts in split]), plan)
        extras.append(extra)
    return x, jax.tree.map(lambda *parts: jnp.stack(parts), *extras)


def _unstack(stacked: Array) -> list[Array]:
    """One array per layer; unlike indexing, the gradient is one concatenation, not a sum of padded arrays."""
    return [part.reshape(stacked.shape[1:]) for part in lax.split(stacked, (1,) * stacked.shape[0])]
