"""Models small enough for tests, with parameters that leave nothing at its starting value."""

import jax

from lmlab.models.config import Dense, Grug


def small_grug(**changes):
    """Four layers (three windowed, one long), with room for every token, so that none is dropped."""
    sizes = {"vocab": 97, "hidden": 32, "layers": 4, "heads": 4, "kv_heads": 2, "experts": 6, "top_k": 2}
    more = {"expert_width": 24, "shared_width": 16, "window": 5, "norm_gate_rank": 4, "capacity_factor": 3.0}
    return Grug(**(sizes | more | changes))


def small_dense(**changes):
    """Two layers, grouped heads."""
    sizes = {"vocab": 97, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "mlp_width": 48}
    return Dense(**(sizes | changes))


def noisy(params, seed=7, scale=0.3):
    """Params with noise on everything, so that what starts at zero or one is tested too."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return tree.unflatten(
        [leaf + scale * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    )
