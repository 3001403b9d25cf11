"""The key-value cache that decoding appends to."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from lmlab.core.errors import ConfigError
from lmlab.models.config import Model
from lmlab.models.layers import Cache


def init_cache(config: Model, batch: int, length: int, dtype: DTypeLike = jnp.bfloat16) -> Cache:
    """An empty cache with room for `length` tokens in each of `batch` rows.

    >>> from lmlab.models.config import Dense
    >>> init_cache(Dense.sized(64, vocab=100), batch=3, length=16).keys.shape
    (2, 3, 16, 1, 32)
    """
    if batch < 1 or length < 1:
        raise ConfigError(
            f"a cache of batch={batch} rows with length={length} holds nothing. Give both as 1 or more."
        )
    shape = (config.layers, batch, length, config.kv_heads, config.head_width)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))
