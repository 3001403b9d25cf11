"""Choosing tokens: the right distribution, an exact nucleus, and no slot that feels its neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

from lmlab.serving.sampling import Dials, pick, stream_key

WORDS = 40
OFF = jnp.asarray(False)
choose = jax.jit(pick, static_argnames="top")


def logits_of(seed, rows, spread=2.0):
    return jnp.asarray(np.random.default_rng(seed).normal(0, spread, (rows, WORDS)), jnp.float32)


def dials(rows, temperature=1.0, top_p=1.0):
    keys = jax.vmap(lambda n: stream_key(jnp.array([n, 0, 0], jnp.uint32)))(
        jnp.arange(rows, dtype=jnp.uint32)
    )
    return Dials(jnp.full(rows, temperature), jnp.full(rows, top_p), keys)


def drawn(logits, temperature=1.0, top_p=1.0):
    rows = logits.shape[0]
    positions = jnp.arange(rows, dtype=jnp.int32)
    return np.array(choose(logits, dials(rows, temperature, top_p), positions, OFF, top=4).token)


def test_tokens_come_as_often_as_the_tempered_softmax_says():
    rows, temperature = 20_000, 0.7
    logits = jnp.tile(logits_of(1, 1), (rows, 1))
    frequency = np.bincount(drawn(logits, temperature), minlength=WORDS) / rows
    expected = np.array(jax.nn.softmax(logits[0] / temperature))
    # five standard errors of the likeliest word's frequency
    np.testing.assert_allclose(frequency, expected, atol=5 * 0.5 / rows**0.5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_the_nucleus_is_the_smallest_set_of_likeliest_words_that_reaches_top_p(seed, top_p):
    rows = 2000
    row = logits_of(seed, 1)
    probabilities = np.sort(np.array(jax.nn.softmax(row[0])))[::-1]
    size = int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1
    allowed = set(np.argsort(-np.array(row[0]))[: size + 1].tolist())  # one more: the sum is rounded
    seen = set(drawn(jnp.tile(row, (rows, 1)), top_p=top_p).tolist())
    assert seen <= allowed
    assert len(seen) > size * 0.3  # and it is sampled from, not just its best


def test_a_slots_token_does_not_depend_on_the_other_slots():
    logits, all_dials = logits_of(3, 8), dials(8, 1.0, 0.9)
    positions = jnp.arange(8, dtype=jnp.int32)
    together = choose(logits, all_dials, positions, OFF, top=4)
    order = np.random.default_rng(0).permutation(8)
    mixed = choose(logits[order], jax.tree.map(lambda d: d[order], all_dials), positions[order], OFF, top=4)
    assert np.array(mixed.token).tolist() == np.array(together.token)[order].tolist()
    assert np.array(mixed.logprob).tolist() == np.array(together.logprob)[order].tolist()


def test_greedy_and_sampled_slots_share_a_batch():
    logits = logits_of(4, 2)
    both = dials(2)._replace(temperature=jnp.array([0.0, 1.0]))
    picked = choose(logits, both, jnp.array([5, 5], jnp.int32), OFF, top=4)
    assert int(picked.token[0]) == int(jnp.argmax(logits[0]))


def test_extreme_logits_neither_overflow_nor_lose_the_winner():
    logits = jnp.full((1, WORDS), -1e30).at[0, 7].set(3e38)
    assert drawn(logits, temperature=1.0, top_p=0.5).tolist() == [7]


def test_logits_that_are_no_numbers_are_flagged_in_their_slot_only():
    logits = logits_of(5, 3).at[1, 2].set(jnp.nan)
    picked = choose(logits, dials(3), jnp.zeros(3, jnp.int32), OFF, top=4)
    assert np.array(picked.is_finite).tolist() == [True, False, True]


def test_top_logprobs_are_sorted_and_add_up_to_one():
    picked = choose(logits_of(6, 2), dials(2), jnp.zeros(2, jnp.int32), jnp.asarray(True), top=WORDS)
    top = np.array(picked.top_logprobs)
    assert (np.diff(top, axis=-1) <= 0).all()
    np.testing.assert_allclose(np.exp(top).sum(-1), 1, rtol=1e-5)  # float32 sum of 40
