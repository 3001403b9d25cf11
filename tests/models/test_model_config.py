"""Configs are checked before anything is compiled, and their counts are those of the parameters."""

import jax
import pytest
from small_models import small_dense, small_grug

from lmlab.core.config import decode, encode
from lmlab.core.errors import ConfigError
from lmlab.models.config import Dense, Experts, Grug, LayerPlan
from lmlab.models.decoder import init_params


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 5}, "heads=5 does not divide hidden=32"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"top_k": 6}, "top_k=6 with experts=6"),
        ({"top_k": 0}, "Grug.top_k=0"),
        ({"window": 0}, "Grug.window=0"),
        ({"window": -1}, "Grug.window=-1"),
        ({"layers": 0}, "Grug.layers=0"),
        ({"capacity_factor": 0.0}, "Grug.capacity_factor=0.0"),
        ({"rope_fraction": 0.0}, "rope_fraction=0.0"),
        ({"rope_fraction": 1.5}, "rope_fraction=1.5"),
        ({"heads": 32, "kv_heads": 8}, "RoPE would turn 0"),
    ],
)
def test_impossible_grug_shapes_are_refused_with_the_values(changes, named):
    with pytest.raises(ConfigError) as raised:
        small_grug(**changes)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 5}, "heads=5"),
        ({"head_dim": 7}, "RoPE would turn 7"),
        ({"mlp_width": -4}, "Dense.mlp_width=-4"),
        ({"norm_eps": 0.0}, "Dense.norm_eps=0.0"),
    ],
)
def test_impossible_dense_shapes_are_refused_with_the_values(changes, named):
    with pytest.raises(ConfigError, match=named):
        small_dense(**changes)


def test_widths_without_whole_heads_are_refused_with_the_next_good_one():
    with pytest.raises(ConfigError, match="Choose 128"):
        Grug.sized(100, vocab=1000)


@pytest.mark.parametrize(
    "config",
    [
        small_grug(),
        small_grug(norm_gate_rank=None, head_gate=False, shared_width=None, head_dim=16),
        small_dense(),
        small_dense(tied=True, qk_norm=True, biases=True, head_dim=16),
        Grug.sized(64, vocab=500),
        Dense.sized(96, vocab=500, tied=True),
    ],
)
def test_param_count_is_the_number_of_parameters(config):
    shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    assert config.param_count() == sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_active_params_leave_out_the_experts_that_a_token_does_not_use():
    config = small_grug()
    unused = config.layers * (config.experts - config.top_k) * (3 * 32 * 24)
    assert config.param_count() - config.active_param_count() == unused


def test_every_fourth_layer_and_the_last_see_all_without_positions():
    short, long = LayerPlan(window=5, rope=True), LayerPlan(window=None, rope=False)
    assert small_grug(layers=6).layer_plan() == (short, short, short, long, short, long)
    assert small_grug(layers=1).layer_plan() == (long,)
    assert small_grug(layers=2, long_rope=True).layer_plan()[-1] == LayerPlan(window=None, rope=True)


@pytest.mark.parametrize("config", [small_grug(experts_by=Experts.DENSE), small_dense(biases=True)])
def test_configs_survive_encoding_and_refuse_unknown_fields(config):
    stored = encode(config)
    assert decode(type(config), stored) == config
    with pytest.raises(ConfigError, match="colour"):
        decode(type(config), {**stored, "colour": 3})


def test_an_unavailable_way_to_run_experts_is_refused():
    with pytest.raises(ConfigError, match="ragged"):
        decode(Grug, {**encode(small_grug()), "experts_by": "ragged"})
