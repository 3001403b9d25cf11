"""FLOPs equal a count of what the model multiplies, query by query and key by key."""

import pytest

from lmlab.models.config import Dense, Grug
from lmlab.science.flops import Shape, flops_per_token, mean_span, utilization


def seen_pairs(seq, window):
    """Unmasked (query, key) pairs, counted one by one."""
    return sum(1 for q in range(seq) for k in range(q + 1) if window is None or k > q - window)


@pytest.mark.parametrize("seq", [1, 7, 64])
@pytest.mark.parametrize("window", [None, 1, 5, 64, 100])
def test_mean_span_is_the_counted_pairs_per_query(seq, window):
    assert mean_span(seq, window) == pytest.approx(seen_pairs(seq, window) / seq)


@pytest.mark.parametrize(
    "model",
    [
        Grug.sized(64, vocab=300, layers=6, window=16),
        Grug(300, 64, 3, 4, 2, 8, 3, 48, None, window=None, norm_gate_rank=None, head_gate=False),
        Dense.sized(96, vocab=300),
    ],
)
def test_flops_follow_from_the_layer_plan_pair_by_pair(model):
    seq, width = 40, model.heads * model.head_width
    pairs = [seen_pairs(seq, plan.window) for plan in model.layer_plan()]
    flops = flops_per_token(model.shape(seq))
    # A pair costs q·k and p·v (2 FLOPs a channel each) and 3 in the softmax of each head.
    assert flops.attention * seq == pytest.approx(sum(pairs) * (4 * width + 3 * model.heads))
    # Every weight matrix that a token passes costs 2 FLOPs a parameter; norms, biases, lookups nothing.
    vectors = model.hidden * (2 * model.layers + (2 if isinstance(model, Grug) else 1))
    vectors += model.layers * model.experts if isinstance(model, Grug) else 0
    matrices = model.active_param_count() - vectors - model.vocab * model.hidden
    assert flops.forward - flops.attention == pytest.approx(2 * matrices)
    assert flops.training == 3 * flops.forward
    assert flops.head == 2 * model.vocab * model.hidden


def test_ignoring_windows_overstates_what_marin_measured():
    """The 24-layer, 2,048 wide shape: 1.09 times (science.md 50)."""
    windows = tuple(None if i % 4 == 3 or i == 23 else 2048 for i in range(24))
    shape = Shape(
        seq=4096, hidden=2048, vocab=128_256, heads=16, kv_heads=4, head_dim=128, windows=windows,
        mlp_width=4 * 1024 + 2048, experts=64, norm_gate_rank=128, head_gates=True,
    )  # fmt: skip
    ratio = flops_per_token(shape, full_attention=True).forward / flops_per_token(shape).forward
    assert 1.01 < ratio < 1.09
    assert utilization(shape, 1e6, 1e18) == pytest.approx(flops_per_token(shape).training * 1e6 / 1e18)
