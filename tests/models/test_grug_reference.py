"""Grug against a second forward pass, in plain numpy, one token and one head at a time."""

import jax
import numpy as np
import pytest
from small_models import noisy, run, small_grug


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(config, weights, x):
    n = x / np.sqrt(np.mean(x**2) + config.norm_eps) * weights["weight"]
    return n if config.norm_gate_rank is None else n * sigmoid(silu(n @ weights["down"]) @ weights["up"])


def unit(x):
    return x / np.sqrt(np.mean(x**2) + 1e-6)


def turned(config, x, position):
    """RoPE of one head's vector."""
    half = config.rotary_width // 2
    y = x.copy()
    for i in range(half):
        angle = position * config.rope_theta ** (-i / half)
        a, b = x[i], x[half + i]
        y[i], y[half + i] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return y


def attention(config, weights, x, segments, layer):
    """All tokens of one row; `layer` decides window and positions."""
    width = config.head_width
    is_long = layer % config.long_every == config.long_every - 1 or layer == config.layers - 1
    out = np.zeros((len(x), config.heads * width))
    for head in range(config.heads):
        shared = head // (config.heads // config.kv_heads)
        mine, theirs = slice(head * width, (head + 1) * width), slice(shared * width, (shared + 1) * width)
        q, k, v = x @ weights["q"][:, mine], x @ weights["k"][:, theirs], x @ weights["v"][:, theirs]
        if config.qk_norm:
            q, k = np.array([unit(row) for row in q]), np.array([unit(row) for row in k])
        if config.long_rope or not is_long:
            q = np.array([turned(config, row, t) for t, row in enumerate(q)])
            k = np.array([turned(config, row, t) for t, row in enumerate(k)])
        for t in range(len(x)):
            reach = t + 1 if is_long or config.window is None else config.window
            seen = [s for s in range(t + 1) if segments[s] == segments[t] and s > t - reach]
            scores = np.exp([q[t] @ k[s] * config.qk_mult / np.sqrt(width) for s in seen])
            y = (scores / scores.sum()) @ v[seen]
            if config.exclusive_attention:
                y = y - (y @ v[t]) / (v[t] @ v[t] + 1e-6) * v[t]
            out[t, mine] = y * (2 * sigmoid(x[t] @ weights["head_gate"][:, head]) if config.head_gate else 1)
    return out @ weights["out"]


def mixture(config, weights, bias, x):
    """One token; nothing is dropped."""
    logits = x @ weights["router"]
    chosen = np.argsort(-(logits + bias), kind="stable")[: config.top_k]
    shares = sigmoid(logits[chosen])
    shares = config.combine_scale * shares / (shares.sum() + 1e-9)
    out = np.zeros_like(x)
    for share, expert in zip(shares, chosen, strict=True):
        gate, up, down = (weights["experts"][name][expert] for name in ("gate", "up", "down"))
        out += share * ((silu(x @ gate) * (x @ up)) @ down)
    if config.shared_width is not None:
        shared = weights["shared"]
        out += (silu(x @ shared["gate"]) * (x @ shared["up"])) @ shared["down"]
    return out


def reference(params, config, tokens, segments):
    """Hidden states of one row, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = np.array([norm(config, params["embed"]["norm"], params["embed"]["weight"][t]) for t in tokens])
    for layer in range(config.layers):
        weights = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["layers"])
        normed = np.array([norm(config, weights["attention_norm"], row) for row in x])
        x = x + attention(config, weights["attention"], normed, segments, layer)
        normed = np.array([norm(config, weights["mlp_norm"], row) for row in x])
        x = x + np.array([mixture(config, weights, params["router_bias"][layer], row) for row in normed])
    return np.array([norm(config, params["final_norm"], row) for row in x])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_fraction": 1.0, "long_rope": True, "window": None, "qk_mult": 1.0},
        {"qk_norm": False, "exclusive_attention": False, "norm_gate_rank": None, "combine_scale": 1.0},
        {"head_gate": False, "shared_width": None, "kv_heads": 4},
        pytest.param({"layers": 4, "long_every": 2, "kv_heads": 4, "head_dim": 12}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: "-".join(changes) or "recipe",
)
def test_hidden_states_equal_the_reference_with_each_part_on_and_off(changes):
    config = small_grug(**changes)
    params = noisy(config)
    tokens = jax.random.randint(jax.random.key(4), (1, 18), 0, config.vocab)
    segments = np.array([[0] * 4 + [1] * 14])
    ours = run(params, config, tokens, segments).hidden[0]
    # float32 against float64, values near 3
    np.testing.assert_allclose(ours, reference(params, config, np.asarray(tokens[0]), segments[0]), atol=2e-5)
