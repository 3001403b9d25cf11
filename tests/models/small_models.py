"""Models small enough for tests, with parameters that leave nothing at its starting value."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmlab.models.config import Dense, Grug
from lmlab.models.decoder import forward, init_params

QUICK = {"xla_backend_optimization_level": 1}  # compiles twice as fast, computes the same


def small_grug(**changes):
    """A windowed layer and a long one, with room for every token, so that none is dropped."""
    sizes = {"vocab": 97, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "experts": 6, "top_k": 2}
    more = {"expert_width": 24, "shared_width": 16, "window": 5, "norm_gate_rank": 4, "capacity_factor": 3.0}
    return Grug(**(sizes | more | changes))


def small_dense(**changes):
    """Two layers, grouped heads."""
    sizes = {"vocab": 97, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "mlp_width": 48}
    return Dense(**(sizes | changes))


def noisy(model, scale=0.3, seed=7):
    """Parameters that leave nothing at its starting value: noise, around 1 for the weights of norms.

    Drawn by numpy, which compiles nothing.
    """
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))

    def fill(path, leaf):
        is_gain = "norm" in jax.tree_util.keystr(path) and path[-1].key not in ("down", "up")
        return jnp.asarray(is_gain + scale * rng.standard_normal(leaf.shape, np.float32))

    return jax.tree_util.tree_map_with_path(fill, shapes)


@partial(jax.jit, static_argnames=("config", "dtype"), compiler_options=QUICK)
def run(params, config, tokens, segments=None, cache=None, dtype=jnp.float32):
    """A compiled forward pass: operation by operation it takes ten times as long."""
    return forward(params, config, tokens, segments=segments, cache=cache, dtype=dtype)
