"""Optimizers: which rule moves what, norms that stay, a clip over everything, and reference values."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmlab.core.errors import ConfigError
from lmlab.training import optim
from lmlab.training.recipe import AdamW, MuonH, Schedule

SHAPES = {
    "embed.weight": (40, 8),
    "head": (8, 40),
    "layers.attention.q": (2, 8, 8),
    "layers.experts.up": (2, 3, 8, 6),
    "layers.attention_norm.weight": (2, 8),
    "layers.router": (2, 8, 3),
    "router_bias": (2, 3),
}
OPTIMIZER = MuonH(lr=0.05, adam_lr=0.01)


def arrays(seed: int, scale: float = 1.0) -> optim.Params:
    random = np.random.default_rng(seed)
    shaped = {path: scale * random.standard_normal(shape) for path, shape in SHAPES.items()}
    return optim.unflatten({path: jnp.asarray(x, jnp.float32) for path, x in shaped.items()})


@functools.partial(jax.jit, static_argnums=0)
def update(
    optimizer: optim.Optimizer,
    params: optim.Params,
    grads: optim.Params,
    moments: optim.Moments,
    count: jax.Array,
) -> tuple[optim.Params, optim.Moments]:
    """One update at the peak of the schedule; jitted, because op by op it compiles every shape."""
    return optim.update(optimizer, params, grads, moments, (jnp.float32(1), count))


def test_flatten_and_unflatten_are_inverse() -> None:
    tree = arrays(0)
    assert jax.tree.structure(optim.unflatten(optim.flatten(tree))) == jax.tree.structure(tree)


def test_the_table_sends_each_parameter_to_its_rule() -> None:
    table = optim.rules(OPTIMIZER, list(SHAPES))
    assert table == {
        "embed.weight": "adamh",
        "head": "adamh",
        "layers.attention.q": "muonh",
        "layers.experts.up": "muonh",
        "layers.attention_norm.weight": "adam",
        "layers.router": "adam",
        "router_bias": "frozen",
    }


def test_a_parameter_that_no_row_covers_is_an_error_naming_it() -> None:
    with pytest.raises(ConfigError, match=r"'layers\.attention\.q'"):
        optim.rules(MuonH(lr=0.05, adam_lr=0.01, groups=(("embed|head", "adamh"),)), list(SHAPES))


def test_a_vector_sent_to_a_matrix_rule_is_an_error() -> None:
    with pytest.raises(ConfigError, match="turns matrices"):
        optim.init_moments(OPTIMIZER, {"offset": jnp.ones(4)})


def test_each_experts_norm_stays_constant_over_100_steps() -> None:
    """One norm per matrix: with one norm for a whole stack the experts' own norms would drift (spec T25)."""
    params = start = arrays(1)
    moments = optim.init_moments(OPTIMIZER, params)
    for number in range(100):
        grads = arrays(100 + number, scale=0.1)
        params, moments = update(OPTIMIZER, params, grads, moments, jnp.float32(number + 1))
    before, after = optim.flatten(start), optim.flatten(params)
    for path in ("embed.weight", "head", "layers.attention.q", "layers.experts.up"):
        norms = [
            np.linalg.norm(np.asarray(side[path], np.float64), axis=(-2, -1)) for side in (before, after)
        ]
        assert norms[0].shape == SHAPES[path][:-2]
        # Float32 rounding of one rescaling is 1e-7 of the norm; it does not add up over steps.
        np.testing.assert_allclose(norms[1], norms[0], rtol=1e-6)
        assert not np.allclose(before[path], after[path], atol=0.05)
    assert np.array_equal(before["router_bias"], after["router_bias"])


def test_the_step_turns_a_matrix_by_the_learning_rate() -> None:
    p = jax.random.normal(jax.random.key(0), (3, 16, 24))
    u = jax.random.normal(jax.random.key(1), (3, 16, 24))
    u = u - p * jnp.sum(u * p, (-2, -1), keepdims=True) / optim.matrix_norm(p) ** 2  # tangent to the sphere
    turned = optim.turn(p, u, 0.1, optim.matrix_norm(p))
    cosine = jnp.sum(turned * p, (-2, -1)) / jnp.sum(p * p, (-2, -1))
    np.testing.assert_allclose(cosine, math.cos(math.atan(0.1)), rtol=1e-5)


def test_newton_schulz_finds_the_nearest_orthogonal_matrix_of_each_matrix() -> None:
    """Lying and standing matrices of one shape share a loop; each must come back in its place."""
    shapes = {"a": (16, 40), "b": (40, 16), "c": (2, 3, 16, 16), "d": (2, 40, 16)}
    random = np.random.default_rng(2)
    given = {path: jnp.asarray(random.standard_normal(shape), jnp.float32) for path, shape in shapes.items()}
    found = jax.jit(lambda x: optim.orthogonal(x, 5))(given)
    for path, shape in shapes.items():
        assert found[path].shape == shape
        u, _, vt = np.linalg.svd(np.asarray(given[path]), full_matrices=False)
        ours, exact = np.asarray(found[path]), u @ vt
        values = np.linalg.svd(ours, compute_uv=False)
        # The quintic ends within about 0.3 of 1 for all but tiny singular values; bfloat16 adds a little.
        assert np.median(values) == pytest.approx(1, abs=0.15)
        assert values.max() < 1.4
        cosine = (
            (ours * exact).sum((-2, -1))
            / np.linalg.norm(ours, axis=(-2, -1))
            / np.linalg.norm(exact, axis=(-2, -1))
        )
        assert cosine.min() > 0.95


def test_a_zero_gradient_gives_finite_parameters() -> None:
    params = arrays(3)
    zeros = jax.tree.map(jnp.zeros_like, params)
    new, _ = update(OPTIMIZER, params, zeros, optim.init_moments(OPTIMIZER, params), jnp.float32(1))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(new))


def test_the_clip_is_over_all_groups_together() -> None:
    grads = arrays(4, scale=10.0)
    clipped, norm = optim.clip(grads, 1.0)
    every = np.concatenate([np.asarray(g).ravel() for g in jax.tree.leaves(grads)])
    assert float(norm) == pytest.approx(np.linalg.norm(every), rel=1e-5)
    scales = {
        path: float(jnp.linalg.norm(a.ravel()) / jnp.linalg.norm(b.ravel()))
        for (path, a), b in zip(optim.flatten(clipped).items(), optim.flatten(grads).values(), strict=True)
    }
    np.testing.assert_allclose(list(scales.values()), 1 / float(norm), rtol=1e-5)
    assert optim.clip(grads, None)[0] is grads


def test_adamw_equals_optax() -> None:
    ours = AdamW(lr=0.01, weight_decay=0.1, clip=None)
    decayed = {path: rule == "adamw" for path, rule in optim.rules(ours, list(SHAPES)).items()}
    trained = {path: x for path, x in optim.flatten(arrays(5)).items() if path != "router_bias"}
    theirs = optax.adamw(
        0.01, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1, mask={p: decayed[p] for p in trained}
    )
    params, reference = arrays(5), trained
    moments, state = optim.init_moments(ours, params), theirs.init(reference)
    for number in range(5):
        grads = arrays(50 + number)
        params, moments = update(ours, params, grads, moments, jnp.float32(number + 1))
        flat = {path: g for path, g in optim.flatten(grads).items() if path != "router_bias"}
        updates, state = theirs.update(flat, state, reference)
        reference = optax.apply_updates(reference, updates)
    found = optim.flatten(params)
    for path, expected in reference.items():
        np.testing.assert_allclose(found[path], expected, rtol=2e-5, atol=1e-6)


def test_schedule_golden_values() -> None:
    linear = Schedule(warmup=0.1, decay=0.5)
    assert [round(linear.factor(step, 20), 4) for step in (0, 1, 2, 9, 10, 15, 19)] == [
        0.5, 1.0, 1.0, 1.0, 0.9091, 0.4545, 0.0909,
    ]  # fmt: skip
    cosine = Schedule(warmup=0.0, decay=1.0, shape="cosine", final=0.1)
    assert cosine.factor(0, 9) == pytest.approx(0.1 + 0.9 * (1 - math.cos(math.pi * 0.9)) / 2)
    assert cosine.factor(8, 9) == pytest.approx(0.1 + 0.9 * (1 - math.cos(math.pi * 0.1)) / 2)
    assert all(Schedule(warmup=0, decay=0).factor(step, 7) == 1.0 for step in range(7))
    assert Schedule().factor(0, 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(warmup=0.6, decay=0.6), "add up to more"),
        (lambda: Schedule(final=-1), "schedule.final=-1"),
        (lambda: MuonH(lr=-0.1, adam_lr=0.1), r"optimizer\.lr=-0\.1"),
        (lambda: MuonH(lr=0.1, adam_lr=0.1, groups=(("", "adamw"),)), "muonh does not have"),
        (lambda: AdamW(lr=0.1, clip=0.0), r"optimizer\.clip=0\.0"),
        (lambda: AdamW(lr=0.1, beta2=1.0), r"optimizer\.beta2=1\.0"),
        (lambda: MuonH.sized(0, 10, 10), "hidden=0"),
    ],
)
def test_impossible_settings_are_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_the_sized_rates_follow_the_fit_and_stay_in_bounds() -> None:
    large = MuonH.sized(2560, 10**12, 2**22)
    fitted = 0.06602 * 1e12**-0.395 * 2560**-0.15 * math.sqrt(2**22)
    assert large.adam_lr == pytest.approx(fitted)
    assert large.lr == pytest.approx(13 / 3 * fitted)
    tiny = MuonH.sized(128, 120 * 4096, 4096)
    assert (tiny.lr, tiny.adam_lr, tiny.beta2) == (pytest.approx(8 / 120), 0.1, 0.95)
    assert MuonH.sized(64, 4096, 4096, momentum=0.9).momentum == 0.9
