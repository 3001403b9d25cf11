"""What a forward pass must keep: segments, causality, windows, the cache, and nearness in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import noisy, run, small_dense, small_grug

from lmlab.core.errors import ConfigError
from lmlab.models.cache import init_cache
from lmlab.models.decoder import forward, init_params, logits

KEY = jax.random.key(3)
SEQ = 150  # two blocks of queries, the second one not full


def some(model, rows=2, seq=SEQ):
    """Parameters and tokens, the same shapes in every test, so that programs are compiled once."""
    return noisy(model), jax.random.randint(KEY, (rows, seq), 0, model.vocab)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_another_segment_never_changes_a_hidden_state_bit_for_bit(model, dtype):
    params, tokens = some(model)
    segments = jnp.broadcast_to(jnp.where(jnp.arange(SEQ) < 70, 0, 1), tokens.shape)
    changed = tokens.at[:, 33].add(1) % model.vocab
    before = run(params, model, tokens, segments, dtype=dtype).hidden
    after = run(params, model, changed, segments, dtype=dtype).hidden
    np.testing.assert_array_equal(before[:, 70:], after[:, 70:])
    assert not np.array_equal(before[:, 33:70], after[:, 33:70])


def test_a_later_token_never_changes_an_earlier_one(model):
    params, tokens = some(model)
    one_text = jnp.zeros_like(tokens)
    before = run(params, model, tokens, one_text, dtype="bfloat16").hidden
    after = run(params, model, tokens.at[:, 100].add(1) % model.vocab, one_text, dtype="bfloat16").hidden
    np.testing.assert_array_equal(before[:, :100], after[:, :100])
    assert np.all(np.any(np.asarray(before != after)[:, 100:], axis=-1))


def test_a_windowed_layer_reaches_only_so_far():
    config = small_grug()
    params, tokens = some(config)
    params["layers"]["attention"]["v"] = params["layers"]["attention"]["v"].at[1].set(0)  # mute the long one
    one_text = jnp.zeros_like(tokens)
    before = run(params, config, tokens, one_text).hidden
    after = run(params, config, tokens.at[:, 126].add(1) % config.vocab, one_text).hidden
    changed = np.flatnonzero(np.any(np.asarray(before != after), axis=(0, 2)))
    assert changed.tolist() == [126, 127, 128, 129, 130]


def test_reading_piece_by_piece_with_a_cache_equals_reading_at_once(model):
    params, tokens = some(model)
    whole = run(params, model, tokens, jnp.zeros_like(tokens)).hidden
    cache = init_cache(model, batch=2, length=160, dtype=jnp.float32)
    parts = []
    for piece in np.split(tokens, [1], axis=1):
        out = run(params, model, jnp.asarray(piece), cache=cache)
        cache = out.cache
        parts.append(out.hidden)
    # float32 sums in another order: about 1e-6 of values near 3
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=3e-5)
    assert cache.lengths.tolist() == [SEQ, SEQ]


@pytest.mark.slow
def test_rows_of_a_cache_have_lengths_of_their_own():
    config = small_grug()
    params, tokens = some(config, seq=12)
    cache = init_cache(config, batch=2, length=16, dtype=jnp.float32)
    cache = run(params, config, tokens[:, :9], cache=cache).cache
    cache = cache._replace(lengths=jnp.array([9, 4]))  # the second row's prompt was 4 long, then padding
    following = jnp.stack([tokens[0, 9:12], tokens[1, 4:7]])
    out = run(params, config, following, cache=cache).hidden
    whole = run(params, config, tokens).hidden
    np.testing.assert_allclose(out[0], whole[0, 9:], atol=3e-5)
    np.testing.assert_allclose(out[1], whole[1, 4:7], atol=3e-5)


def test_segments_with_a_cache_are_refused_and_so_is_an_empty_cache(model):
    tokens = jnp.zeros((1, 4), jnp.int32)
    cache = init_cache(model, batch=1, length=8)
    with pytest.raises(ConfigError, match="segments and a cache"):
        forward(init_params(model, KEY), model, tokens, cache=cache, segments=tokens)
    with pytest.raises(ConfigError, match="holds nothing"):
        init_cache(model, batch=1, length=0)


SHAPES = [(1, 1, 1), (2, 4, 4), (130, 4, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("architecture", ["grug", "dense"])
def test_bfloat16_is_near_float32_for_all_head_layouts_and_lengths(shape, architecture):
    """XLA's CPU backend refuses bfloat16 products in some memory layouts, at run time only."""
    seq, heads, kv_heads = shape
    config = (
        small_grug(heads=heads, kv_heads=kv_heads)
        if architecture == "grug"
        else small_dense(heads=heads, kv_heads=kv_heads, tied=True)
    )
    params, tokens = init_params(config, KEY), jax.random.randint(KEY, (1, seq), 0, config.vocab)

    def score(params, dtype):
        hidden = forward(params, config, tokens, dtype=dtype).hidden
        return jnp.sum(jnp.sin(logits(params, config, hidden, dtype=dtype)))

    near, exact = (jax.jit(jax.grad(score), static_argnums=1)(params, d) for d in ("bfloat16", "float32"))
    whole = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(exact)))
    for a, b in zip(jax.tree.leaves(near), jax.tree.leaves(exact), strict=True):
        # bfloat16 keeps 8 bits; routing may flip for single tokens, hence norms of whole arrays
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b) + 0.01 * whole
