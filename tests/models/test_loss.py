"""Chunked cross entropy equals the plain one, gradients included, whatever the chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import noisy, small_dense

from lmlab.models.forward import forward, init_params, logits
from lmlab.models.loss import Batch, bits_per_byte, mean_loss, token_losses

KEY = jax.random.key(5)


def batch_for(model, rows=3, seq=11):
    tokens = jax.random.randint(KEY, (rows, seq), 0, model.vocab)
    weights = jnp.where(jnp.arange(seq) == seq - 1, 0.0, jnp.array([[1.0], [0.5], [2.0]])[:rows])
    return Batch(tokens, jnp.roll(tokens, -1, axis=1), weights, None)


def plain(params, model, batch):
    """Cross entropy with all scores at once."""
    hidden = forward(params, model, batch.tokens, segments=batch.segments, dtype=jnp.float32).hidden
    log_probabilities = jax.nn.log_softmax(logits(params, model, hidden))
    nats = -jnp.take_along_axis(log_probabilities, batch.targets[..., None], axis=-1)[..., 0]
    return jnp.where(batch.weights > 0, nats, 0.0)


def assert_trees_close(a, b, tolerance):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("chunk", [7, 16, 33, 1000])
def test_losses_per_token_and_their_gradients_equal_the_plain_ones(model, chunk):
    params, batch = noisy(init_params(model, KEY), scale=0.1), batch_for(model)

    def chunked(params):
        return token_losses(params, model, batch, dtype=jnp.float32, chunk=chunk)[0]

    np.testing.assert_allclose(chunked(params), plain(params, model, batch), atol=1e-5)
    ours = jax.grad(lambda p: jnp.sum(jnp.sqrt(1 + chunked(p))))(params)
    theirs = jax.grad(lambda p: jnp.sum(jnp.sqrt(1 + plain(p, model, batch))))(params)
    assert_trees_close(ours, theirs, 2e-5)


@pytest.mark.parametrize("z_weight", [0.0, 0.01])
@pytest.mark.parametrize("tied", [False, True])
def test_the_training_loss_has_the_plain_value_and_gradient(z_weight, tied):
    model = small_dense(tied=tied)
    params, batch = noisy(init_params(model, KEY), scale=0.1), batch_for(model)

    def reference(params):
        hidden = forward(params, model, batch.tokens, dtype=jnp.float32).hidden
        squares = jax.nn.logsumexp(logits(params, model, hidden), axis=-1) ** 2
        terms = batch.weights * (plain(params, model, batch) + z_weight * squares)
        return jnp.sum(terms) / jnp.sum(batch.weights)

    def chunked(params):
        return mean_loss(params, model, batch, dtype=jnp.float32, chunk=8, z_weight=z_weight)

    (loss, losses), ours = jax.value_and_grad(chunked, has_aux=True)(params)
    expected, theirs = jax.value_and_grad(reference)(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(chunked(params)[0], expected, rtol=1e-6)
    np.testing.assert_allclose(losses.nats, plain(params, model, batch), atol=1e-5)
    assert_trees_close(ours, theirs, 2e-5)


def test_the_gradient_scales_with_what_is_asked_of_the_loss(model):
    params, batch = init_params(model, KEY), batch_for(model)
    loss = lambda params, factor: factor * mean_loss(params, model, batch, dtype=jnp.float32)[0]  # noqa: E731
    once, thrice = jax.grad(loss)(params, 1.0), jax.grad(loss)(params, 3.0)
    assert_trees_close(jax.tree.map(lambda g: 3 * g, once), thrice, 1e-6)


def test_scores_of_the_whole_batch_never_exist():
    model = small_dense(vocab=5000, layers=1)
    batch = batch_for(model, rows=3, seq=400)
    loss = jax.value_and_grad(lambda p: mean_loss(p, model, batch, chunk=64), has_aux=True)
    program = jax.jit(loss).lower(init_params(model, KEY)).as_text()
    assert "64x5000" in program.replace("63x5000", "64x5000").replace("60x5000", "64x5000")
    assert "1200x5000" not in program
    assert "400x5000" not in program


def test_bits_per_byte_of_two_bits_for_every_byte():
    assert bits_per_byte(jnp.full((2, 4), 2 * np.log(2.0)), 8) == pytest.approx(2.0)
