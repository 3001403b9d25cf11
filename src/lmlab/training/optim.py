"""Optimizers as pure functions over parameters by path: MuonH, AdamH, Adam and AdamW in one update.

A table of path patterns (recipe.py) says which rule moves a parameter. A *matrix* is the last two axes of
an array; all earlier axes (layers, experts) only stack matrices, so norms and orthogonalization are taken
per matrix: experts of shape [layers, experts, hidden, width] have layers x experts separate norms.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from lmlab.core.errors import ConfigError
from lmlab.models.layers import product_nn, product_nt
from lmlab.training.recipe import AdamW, MuonH, Optimizer

Params = dict[str, Any]
Flat = dict[str, Any]
Moments = dict[str, Params]

# Each triple makes p(s) = a s + b s³ + c s⁵ pull singular values towards 1 (Keller Jordan's fit, one per step
# from You Jiacheng's "quintic" schedule).
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
NORM_FLOOR = 1e-10


def flatten(tree: Params, prefix: str = "") -> Flat:
    """Arrays by dotted path, in sorted order.

    >>> flatten({"b": {"w": 1}, "a": 2})
    {'a': 2, 'b.w': 1}
    """
    flat: Flat = {}
    for name in sorted(tree):
        value, path = tree[name], f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def unflatten(flat: Flat) -> Params:
    """The nested dict that `flatten` came from."""
    tree: Params = {}
    for path, value in flat.items():
        *folders, name = path.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree


def rules(optimizer: Optimizer, paths: list[str]) -> dict[str, str]:
    """The rule of each parameter; an error names a parameter that no row of the table covers."""
    found = {}
    for path in paths:
        rule = next((rule for pattern, rule in optimizer.groups if re.search(pattern, path)), None)
        if rule is None:
            raise ConfigError(
                f"no row of optimizer.groups matches the parameter {path!r}, so it would never be trained. "
                'Add a row, or end the table with ("", rule).'
            )
        found[path] = rule
    return found


def init_moments(optimizer: Optimizer, params: Params) -> Moments:
    """Zero moments (`first` for every trained parameter, `second` for all but MuonH's), and the `radius` of
    each matrix that stays on its sphere.
    """
    flat = flatten(params)
    table = rules(optimizer, list(flat))
    _check_matrices(flat, table)
    first = {path: jnp.zeros_like(flat[path]) for path, rule in table.items() if rule != "frozen"}
    second = {path: jnp.zeros_like(flat[path]) for path in first if table[path] != "muonh"}
    radius = {path: matrix_norm(flat[path]) for path, rule in table.items() if rule in ("muonh", "adamh")}
    return {"first": unflatten(first), "second": unflatten(second), "radius": unflatten(radius)}


def update(
    optimizer: Optimizer, params: Params, grads: Params, moments: Moments, when: tuple[Array, Array]
) -> tuple[Params, Moments]:
    """One step: new parameters and moments.

    `when` = (share of the peak learning rate, 1-based step number for the bias correction).
    """
    flat, gradients = flatten(params), flatten(grads)
    table = rules(optimizer, list(flat))
    first, second, radius = (flatten(moments[name]) for name in ("first", "second", "radius"))
    factor, count = when
    new, momenta = dict(flat), {}
    for path, rule in table.items():
        if rule == "frozen":
            continue
        p, g = flat[path], gradients[path]
        if rule == "muonh":
            assert isinstance(optimizer, MuonH)
            first[path] = optimizer.momentum * first[path] + g
            momenta[path] = optimizer.momentum * first[path] + g
            continue
        m = first[path] = optimizer.beta1 * first[path] + (1 - optimizer.beta1) * g
        v = second[path] = optimizer.beta2 * second[path] + (1 - optimizer.beta2) * jnp.square(g)
        unbiased = jnp.sqrt(v / (1 - optimizer.beta2**count)) + optimizer.eps
        direction = (m / (1 - optimizer.beta1**count)) / unbiased
        if rule == "adamh":
            assert isinstance(optimizer, MuonH)
            new[path] = turn(p, direction, (optimizer.adamh_lr or optimizer.lr) * factor, radius[path])
        else:
            decay = optimizer.weight_decay if isinstance(optimizer, AdamW) and rule == "adamw" else 0.0
            new[path] = p - optimizer.adam_lr * factor * (direction + decay * p)
    if isinstance(optimizer, MuonH):
        for path, direction in orthogonal(momenta, optimizer.newton_schulz_steps).items():
            new[path] = turn(flat[path], direction, optimizer.lr * factor, radius[path])
    return unflatten(new), {**moments, "first": unflatten(first), "second": unflatten(second)}


def orthogonal(momenta: Flat, steps: int) -> Flat:
    """`orthogonalize` of each array; all matrices of one shape, lying or standing, go through it together,
    which compiles and runs a handful of loops instead of one for each parameter.
    """
    groups: dict[tuple[int, int], list[str]] = {}
    for path, x in momenta.items():
        groups.setdefault((min(x.shape[-2:]), max(x.shape[-2:])), []).append(path)
    found = {}
    for shape, paths in groups.items():
        lying = [_lying(momenta[path]).reshape(-1, *shape) for path in paths]
        borders = np.cumsum([len(x) for x in lying])[:-1]
        parts = jnp.split(orthogonalize(jnp.concatenate(lying), steps), borders)
        for path, part in zip(paths, parts, strict=True):
            x = momenta[path]
            found[path] = (part if x.shape[-2] == shape[0] else jnp.swapaxes(part, -1, -2)).reshape(x.shape)
    return found


def _lying(x: Array) -> Array:
    return x if x.shape[-2] <= x.shape[-1] else jnp.swapaxes(x, -1, -2)


def turn(
    p: Float[Array, "*stack rows columns"],
    direction: Float[Array, "*stack rows columns"],
    lr: Array | float,
    radius: Float[Array, "*stack 1 1"],
) -> Float[Array, "*stack rows columns"]:
    """The hyperball step: move each matrix by `lr` times its norm, then put it back on its sphere.

    p' = p - lr R u / |u|, rescaled to the norm R that p had when training began (marin's AdamH). R is kept,
    because norms taken from step to step drift by 1e-8 a step in float32.
    """
    moved = p - (lr * radius / jnp.maximum(matrix_norm(direction), NORM_FLOOR)) * direction
    return moved * (radius / jnp.maximum(matrix_norm(moved), NORM_FLOOR))


def matrix_norm(x: Float[Array, "*stack rows columns"]) -> Float[Array, "*stack 1 1"]:
    """Frobenius norm of each matrix."""
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))


def orthogonalize(
    x: Float[Array, "matrices rows columns"], steps: int
) -> Float[Array, "matrices rows columns"]:
    """Each matrix (rows <= columns) with its singular values pushed to about 1, by Newton-Schulz iterations.

    Products take bfloat16 operands and sum in float32. On CPU the loop has to be a scan: unrolled, XLA fuses
    the elementwise work into the products and takes 1.5 to 3 times as long (48 matrices of 256 x 128: 81 ms
    of CPU unrolled, 28 ms scanned).
    """
    y = x / jnp.maximum(matrix_norm(x), NORM_FLOOR)

    def iterate(y: Array, triple: Array) -> tuple[Array, None]:
        a, b, c = triple
        low = y.astype(jnp.bfloat16)
        gram = product_nt(low, low)
        square = product_nn(gram.astype(jnp.bfloat16), gram.astype(jnp.bfloat16))
        return a * y + product_nn((b * gram + c * square).astype(jnp.bfloat16), low), None

    return lax.scan(iterate, y, jnp.asarray((QUINTIC * 2)[:steps], jnp.float32))[0]


def clip(grads: Params, limit: float | None) -> tuple[Params, Float[Array, ""]]:
    """Gradients scaled so that the norm over *all* parameters is at most `limit`, and the norm before."""
    squares = [jnp.sum(jnp.square(g)) for g in flatten(grads).values()]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    if limit is None:
        return grads, norm
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, NORM_FLOOR))
    return jax.tree.map(lambda g: g * scale, grads), norm


def _check_matrices(flat: Flat, table: dict[str, str]) -> None:
    for path, rule in table.items():
        if rule in ("muonh", "adamh") and flat[path].ndim < 2:
            raise ConfigError(
                f"optimizer.groups sends {path!r} of shape {flat[path].shape} to {rule}, which turns "
                "matrices. Send it to adam."
            )
