"""What a forward pass must keep: causality, segments, windows, the cache, and both values of each option."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import noisy, small_dense, small_grug

from lmlab.core.errors import ConfigError
from lmlab.models.cache import init_cache
from lmlab.models.config import Experts
from lmlab.models.forward import forward, init_params, logits

KEY = jax.random.key(3)


def run(params, config, tokens, **how):
    return forward(params, config, tokens, **{"dtype": jnp.float32, **how})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_another_segment_never_changes_a_hidden_state_bit_for_bit(model, dtype):
    params = noisy(init_params(model, KEY))
    tokens = jax.random.randint(KEY, (2, 150), 0, model.vocab)
    segments = jnp.broadcast_to(jnp.where(jnp.arange(150) < 70, 0, 1), tokens.shape)
    changed = tokens.at[:, 33].add(1) % model.vocab
    before = run(params, model, tokens, segments=segments, dtype=dtype).hidden
    after = run(params, model, changed, segments=segments, dtype=dtype).hidden
    np.testing.assert_array_equal(before[:, 70:], after[:, 70:])
    assert not np.array_equal(before[:, 33:70], after[:, 33:70])


def test_a_later_token_never_changes_an_earlier_one(model):
    params = noisy(init_params(model, KEY))
    tokens = jax.random.randint(KEY, (1, 140), 0, model.vocab)
    before = run(params, model, tokens).hidden
    after = run(params, model, tokens.at[:, 100].add(1) % model.vocab).hidden
    np.testing.assert_array_equal(before[:, :100], after[:, :100])


def test_with_windows_on_all_layers_a_token_reaches_only_so_far():
    config = small_grug(layers=2, window=5, long_every=9)
    params = noisy(init_params(config, KEY))
    params["layers"]["attention"]["v"] = (
        params["layers"]["attention"]["v"].at[1].set(0)
    )  # mute the long layer
    tokens = jax.random.randint(KEY, (1, 140), 0, config.vocab)
    before = run(params, config, tokens).hidden
    after = run(params, config, tokens.at[:, 100].add(1) % config.vocab).hidden
    changed = np.flatnonzero(np.any(np.asarray(before != after), axis=(0, 2)))
    assert changed.tolist() == [100, 101, 102, 103, 104]


@pytest.mark.parametrize("pieces", [(150,), (130, 20), (1,) * 3 + (139, 8)])
def test_reading_piece_by_piece_with_a_cache_equals_reading_at_once(model, pieces):
    params = noisy(init_params(model, KEY))
    tokens = jax.random.randint(KEY, (2, 150), 0, model.vocab)
    whole = run(params, model, tokens).hidden
    cache = init_cache(model, batch=2, length=160, dtype=jnp.float32)
    parts, start = [], 0
    for piece in pieces:
        out = run(params, model, tokens[:, start : start + piece], cache=cache)
        cache, start = out.cache, start + piece
        parts.append(out.hidden)
    # float32 sums in another order: about 1e-6 of values near 3
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=3e-5)
    assert cache.lengths.tolist() == [150, 150]


def test_rows_of_a_cache_have_lengths_of_their_own(model):
    params = noisy(init_params(model, KEY))
    tokens = jax.random.randint(KEY, (2, 12), 0, model.vocab)
    cache = init_cache(model, batch=2, length=16, dtype=jnp.float32)
    cache = run(params, model, tokens[:, :9], cache=cache).cache
    cache = cache._replace(lengths=jnp.array([9, 4]))  # the second row's prompt was 4 long, then padding
    following = jnp.stack([tokens[0, 9:12], tokens[1, 4:7]])
    out = run(params, model, following, cache=cache).hidden
    np.testing.assert_allclose(out[0], run(params, model, tokens[:1, :12]).hidden[0, 9:], atol=3e-5)
    np.testing.assert_allclose(out[1], run(params, model, tokens[1:, :7]).hidden[0, 4:], atol=3e-5)


def test_segments_with_a_cache_are_refused(model):
    tokens = jnp.zeros((1, 4), jnp.int32)
    cache = init_cache(model, batch=1, length=8)
    with pytest.raises(ConfigError, match="segments and a cache"):
        run(init_params(model, KEY), model, tokens, cache=cache, segments=tokens)
    with pytest.raises(ConfigError, match="holds nothing"):
        init_cache(model, batch=1, length=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_fraction": 1.0},
        {"long_rope": True},
        {"window": None},
        {"qk_norm": False},
        {"qk_mult": 1.0},
        {"exclusive_attention": False},
        {"head_gate": False},
        {"norm_gate_rank": None},
        {"shared_width": None},
        {"combine_scale": 1.0},
        {"long_every": 2},
    ],
)
def test_each_part_of_grug_changes_the_model_and_still_decodes_alike(changes):
    config = small_grug(**changes)
    params = noisy(init_params(config, KEY))
    tokens = jax.random.randint(KEY, (1, 20), 0, config.vocab)
    hidden = run(params, config, tokens).hidden
    cache = init_cache(config, batch=1, length=20, dtype=jnp.float32)
    np.testing.assert_allclose(run(params, config, tokens, cache=cache).hidden, hidden, atol=3e-5)
    full = noisy(init_params(small_grug(), KEY))
    shared = {name: full["layers"][name] for name in params["layers"] if name in full["layers"]}
    assert (
        not np.allclose(hidden, run({**full, "layers": shared}, small_grug(), tokens).hidden)
        if ("shared" in params["layers"])
        else True
    )


def test_both_ways_to_run_experts_agree():
    params = noisy(init_params(small_grug(), KEY))
    tokens = jax.random.randint(KEY, (2, 30), 0, 97)
    batched = run(params, small_grug(), tokens).hidden
    dense = run(params, small_grug(experts_by=Experts.DENSE), tokens).hidden
    np.testing.assert_allclose(batched, dense, atol=3e-5)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("seq", [1, 2, 129])
def test_bfloat16_is_near_float32_for_all_head_layouts_and_lengths(heads, seq):
    """XLA's CPU backend refuses bfloat16 products in some memory layouts, at run time only."""
    count, kv_count = heads
    for config in (
        small_grug(heads=count, kv_heads=kv_count, layers=2),
        small_dense(heads=count, kv_heads=kv_count, tied=True),
    ):
        params = init_params(config, KEY)
        tokens = jax.random.randint(KEY, (1, seq), 0, config.vocab)

        def score(params, dtype, config=config, tokens=tokens):
            hidden = forward(params, config, tokens, dtype=dtype).hidden
            return jnp.sum(jnp.sin(logits(params, config, hidden, dtype=dtype)))

        near, exact = (jax.jit(jax.grad(score), static_argnums=1)(params, d) for d in ("bfloat16", "float32"))
        for a, b in zip(jax.tree.leaves(near), jax.tree.leaves(exact), strict=True):
            # bfloat16 keeps 8 bits; routing may flip for single tokens, hence the whole array's norm
            assert np.linalg.norm(a - b) <= 0.15 * np.linalg.norm(b) + 1e-3
