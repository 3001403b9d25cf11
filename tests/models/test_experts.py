"""Routing, capacity and the balancing bias, against loops that do one token at a time."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_models import QUICK, noisy, run, small_grug

from lmlab.models.config import Experts
from lmlab.models.decoder import init_params
from lmlab.models.experts import Routing, assign, capacity_of, kth_largest, route, run_experts
from lmlab.models.grug import apply_pending, router_bias_update
from lmlab.models.layers import RouterStats

KEY = jax.random.key(11)


def loop(experts, valid, count, capacity):
    """Who is kept, one assignment at a time in order of position."""
    used, kept = np.zeros(count, int), np.zeros(experts.shape, bool)
    for token, choices in enumerate(experts):
        for choice, expert in enumerate(choices):
            if valid[token] and used[expert] < capacity:
                used[expert] += 1
                kept[token, choice] = True
    return kept


quick = partial(jax.jit, compiler_options=QUICK)
fill = quick(assign, static_argnums=(2, 3))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), capacity=st.sampled_from([1, 3, 12]))
def test_slots_are_filled_in_order_of_position_and_padding_takes_none(seed, capacity):
    rng = np.random.default_rng(seed)
    experts = np.stack([rng.permutation(5)[:2] for _ in range(12)])
    valid = rng.random(12) < 0.8
    slots = jax.tree.map(np.asarray, fill(jnp.asarray(experts), jnp.asarray(valid), 5, capacity))
    kept = loop(experts, valid, 5, capacity)
    np.testing.assert_array_equal(slots.is_kept, kept)
    assert slots.is_filled.sum() == kept.sum()
    for token, choice in zip(*np.nonzero(kept), strict=True):
        slot = int(slots.slot[token, choice])
        assert slot // capacity == experts[token, choice]
        assert (int(slots.token[slot]), int(slots.choice[slot])) == (token, choice)
        assert bool(slots.is_filled[slot])


@pytest.mark.parametrize("capacity", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_batched_experts_equal_all_experts_on_all_tokens_and_count_what_they_drop(capacity):
    config = small_grug()
    weights = jax.tree.map(lambda w: w[0], noisy(config)["layers"]["experts"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 32)).astype(np.float32)
    experts = np.stack([rng.permutation(6)[:2] for _ in range(16)])
    experts[:8, 0], experts[:8, 1] = 3, 4  # a crowd, so that something is dropped
    combine = rng.random((16, 2)).astype(np.float32)
    valid = np.arange(16) != 2
    stats = RouterStats(*(jnp.zeros(()) for _ in RouterStats._fields))
    routing = Routing(jnp.asarray(experts), jnp.asarray(combine), stats)
    kept = loop(experts, valid, 6, capacity)

    shares = np.zeros((2, 16, 6), np.float32)  # what each choice gives to each expert, dropped ones nothing
    for token, choice in zip(*np.nonzero(kept), strict=True):
        shares[choice, token, experts[token, choice]] = 1

    def all_of_them(x, combine, weights):
        gate, up = (jnp.einsum("td,edf->etf", x, weights[name]) for name in ("gate", "up"))
        out = jnp.einsum("etf,efd->etd", jax.nn.silu(gate) * up, weights["down"])
        return jnp.einsum("tk,kte,etd->td", combine, shares, out)

    def batched(x, combine, weights):
        there = routing._replace(weights=combine)
        return run_experts(
            config, weights, x, there, jnp.asarray(valid), capacity=capacity, dtype=jnp.float32
        )

    out, dropped = quick(batched)(jnp.asarray(x), routing.weights, weights)
    np.testing.assert_allclose(out, all_of_them(x, combine, weights), atol=2e-5)
    assert int(dropped) == 2 * valid.sum() - kept.sum()
    ours = jax.grad(lambda *a: jnp.sum(jnp.sin(batched(*a)[0])), argnums=(0, 1, 2))(
        x, routing.weights, weights
    )
    theirs = jax.grad(lambda *a: jnp.sum(jnp.sin(all_of_them(*a))), argnums=(0, 1, 2))(x, combine, weights)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5)


def test_both_ways_to_run_experts_agree_where_nothing_is_dropped():
    config = small_grug()
    weights = jax.tree.map(lambda w: w[0], noisy(config)["layers"]["experts"])
    x = jax.random.normal(KEY, (16, 32))
    everyone = jnp.ones(16, bool)

    def routed(how):
        routing = route(config, jnp.ones((32, 6)).at[:, 2].set(-1), jnp.arange(6.0), x, everyone)
        chosen = replace(config, experts_by=how)
        return run_experts(chosen, weights, x, routing, everyone, capacity=16, dtype=jnp.float32)[0]

    batched, dense = (quick(routed, static_argnums=0)(how) for how in (Experts.BATCHED, Experts.DENSE))
    np.testing.assert_allclose(batched, dense, atol=2e-5)


def test_selection_uses_the_bias_and_weights_do_not():
    config = small_grug()
    router = jax.random.normal(KEY, (32, 6))
    x = jax.random.normal(KEY, (40, 32))
    bias = jnp.zeros(6).at[2].set(100.0)
    routing = quick(partial(route, config))(router, bias, x, jnp.ones(40, bool))
    assert bool(jnp.all(jnp.any(routing.experts == 2, axis=-1)))
    scores = jax.nn.sigmoid(jnp.take_along_axis(x @ router, routing.experts, axis=1))
    np.testing.assert_allclose(routing.weights, 2.5 * scores / scores.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(routing.weights.sum(1), 2.5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 8])
def test_quantile_balancing_evens_out_a_skewed_router(rows):
    """Also at one sequence: max over mean load falls below 1.3 (training.md, check 9)."""
    config = small_grug(layers=1, experts=8)
    skew = jnp.linspace(-3.0, 3.0, 8)
    router = 0.5 * jax.random.normal(KEY, (32, 8))
    x = jax.random.normal(jax.random.key(1), (rows * 256, 32))

    @quick
    def step(bias):
        biased = jnp.concatenate([router, skew[None]])  # a constant feature makes the skew
        inputs = jnp.concatenate([x, jnp.ones((x.shape[0], 1))], axis=1)
        stats = route(config, biased, bias, inputs, jnp.ones(x.shape[0], bool)).stats
        return -stats.beta, stats.counts.max() / stats.counts.mean()

    bias, loads = jnp.zeros(8), []
    for _ in range(8):
        bias, load = step(bias)
        loads.append(float(load))
    assert loads[0] > 2
    assert loads[-1] < 1.3


def test_without_balancing_the_bias_stays_zero():
    config = small_grug(router_balance=False)
    tokens = jax.random.randint(KEY, (2, 16), 0, config.vocab)
    stats = run(init_params(config, KEY), config, tokens).router
    assert not np.any(stats.beta)


def test_padding_takes_no_capacity_no_statistics_and_gives_no_nan():
    config = small_grug(capacity_factor=1.0)
    params = noisy(config)
    tokens = jax.random.randint(KEY, (2, 16), 0, config.vocab)
    all_padding = jnp.full((2, 16), -1)
    out = run(params, config, tokens, segments=all_padding)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(out))
    assert out.router.counts.sum() == 0
    assert not np.any(out.router.beta)
    half = jnp.where(jnp.arange(16) < 8, 0, all_padding)
    stats = run(params, config, tokens, segments=half).router
    assert stats.counts.sum(axis=1).tolist() == [2 * 8 * config.top_k] * config.layers


def test_the_pending_bias_makes_the_next_forward():
    config = small_grug()
    params = noisy(config)
    tokens = jax.random.randint(KEY, (2, 16), 0, config.vocab)
    first = run(params, config, tokens)
    pending = router_bias_update(first.router)
    applied = apply_pending(params, pending)
    np.testing.assert_array_equal(applied["router_bias"], -pending)
    assert apply_pending(params, None) is params
    assert router_bias_update(None) is None
    second = run(applied, config, tokens)
    assert not np.allclose(first.hidden, second.hidden)


def test_capacity_is_the_fair_share_times_the_factor_and_all_when_decoding():
    config = small_grug(capacity_factor=1.25)
    assert capacity_of(config, 96, is_decoding=False) == 40
    assert capacity_of(config, 96, is_decoding=True) == 96
    assert capacity_of(small_grug(capacity_factor=9.0), 96, is_decoding=False) == 96


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=12, max_size=12), st.integers(1, 12))
def test_kth_largest_is_exact(values, rank):
    found = find_kth(jnp.asarray(values, jnp.float32)[:, None], jnp.asarray(rank))
    assert float(found[0]) == sorted(np.asarray(values, np.float32), reverse=True)[rank - 1]


find_kth = quick(kth_largest)
