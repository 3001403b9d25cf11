"""Chunked cross entropy equals the plain one, gradients included, whatever the chunks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import QUICK, noisy, small_dense

from lmlab.models.decoder import forward, init_params, logits
from lmlab.models.loss import Batch, bits_per_byte, cross_entropy, mean_loss, token_losses

KEY = jax.random.key(5)
quick = partial(jax.jit, compiler_options=QUICK)


def batch_for(model, rows=3, seq=11):
    tokens = jax.random.randint(KEY, (rows, seq), 0, model.vocab)
    weights = jnp.where(jnp.arange(seq) == seq - 1, 0.0, jnp.array([[1.0], [0.5], [2.0]])[:rows])
    return Batch(tokens, jnp.roll(tokens, -1, axis=1), weights, None)


def plain(scores, targets):
    """Cross entropy with all scores at once."""
    log_probabilities = jax.nn.log_softmax(scores)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]


def assert_trees_close(a, b, tolerance):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("chunk", [7, 16, 33, 1000])
def test_losses_per_token_and_their_gradients_equal_the_plain_ones_for_any_chunk(chunk):
    hidden, head = jax.random.normal(KEY, (33, 16)), jax.random.normal(jax.random.key(1), (16, 50))
    targets = jax.random.randint(KEY, (33,), 0, 50)

    def chunked(hidden, head):
        return cross_entropy(hidden, head, targets, dtype=jnp.float32, chunk=chunk)

    def at_once(hidden, head):
        return plain(hidden @ head, targets)

    np.testing.assert_allclose(quick(chunked)(hidden, head), at_once(hidden, head), atol=1e-5)
    ours, theirs = (
        quick(jax.grad(lambda *a, f=f: jnp.sum(jnp.sqrt(1 + f(*a))), argnums=(0, 1)))(hidden, head)
        for f in (chunked, at_once)
    )
    assert_trees_close(ours, theirs, 2e-5)


def test_tokens_without_weight_cost_nothing(model):
    batch = batch_for(model)
    params = noisy(model, scale=0.1)
    nats, _ = quick(partial(token_losses, config=model, dtype=jnp.float32))(params, batch=batch)
    assert np.all((np.asarray(nats) > 0) == (np.asarray(batch.weights) > 0))


@pytest.mark.parametrize(("tied", "z_weight", "chunk"), [(False, 0.0, 8), (True, 0.01, 1000)])
def test_the_training_loss_has_the_plain_value_and_gradient(tied, z_weight, chunk):
    model = small_dense(tied=tied)
    params, batch = noisy(model, scale=0.1), batch_for(model)

    def reference(params):
        scores = logits(params, model, forward(params, model, batch.tokens, dtype=jnp.float32).hidden)
        squares = jax.nn.logsumexp(scores, axis=-1) ** 2
        terms = batch.weights * (plain(scores, batch.targets) + z_weight * squares)
        return 3 * jnp.sum(terms) / jnp.sum(batch.weights)

    def chunked(params):
        loss, losses = mean_loss(params, model, batch, dtype=jnp.float32, chunk=chunk, z_weight=z_weight)
        return 3 * loss, losses  # the gradient made in the forward pass must scale with what is asked of it

    (loss, losses), ours = quick(jax.value_and_grad(chunked, has_aux=True))(params)
    expected, theirs = quick(jax.value_and_grad(reference))(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(quick(chunked)(params)[0], expected, rtol=1e-6)
    assert float(jnp.sum(losses.nats * batch.weights) / batch.weights.sum()) <= float(loss) / 3 + 1e-6
    assert_trees_close(ours, theirs, 2e-5)


def test_gradients_leave_the_compiled_program_in_the_layout_that_jax_thinks(model):
    """With layouts pinned inside, jax 0.10.2 once handed out gradients in columns and read them as rows."""
    params, batch = init_params(model, KEY), batch_for(model)
    program = quick(jax.grad(lambda params: mean_loss(params, model, batch)[0])).lower(params)
    assert "layout_mode" not in program.as_text()
    once = program.compile()(params)
    for leaf in jax.tree.leaves(once):
        np.testing.assert_array_equal(leaf * 2, 2 * np.asarray(leaf))


def test_scores_of_the_whole_batch_never_exist():
    model = small_dense(vocab=5000, layers=1)
    batch = batch_for(model, rows=3, seq=400)
    loss = jax.value_and_grad(lambda p: mean_loss(p, model, batch, chunk=60), has_aux=True)
    program = jax.jit(loss).lower(init_params(model, KEY)).as_text()
    assert "60x5000x" in program
    assert "1200x5000x" not in program
    assert "400x5000x" not in program


def test_bits_per_byte_of_two_bits_for_every_byte():
    assert bits_per_byte(jnp.full((2, 4), 2 * np.log(2.0)), 8) == pytest.approx(2.0)
