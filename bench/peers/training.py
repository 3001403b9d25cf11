"""The torch side of bench/training.py: a Llama-style decoder, eager, SDPA, fused AdamW; one round per line.

Run by bench/training.py with the interpreter that has torch; it imports nothing of lmlab.
"""

import json
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

HEADS, EPS, THETA, DECAY, BETAS, CLIP = 4, 1e-5, 10_000.0, 0.1, (0.9, 0.95), 1.0
Weights = dict[str, torch.Tensor]


def main() -> None:
    """Answer each line {"first", "steps"} with the seconds of a step and the last loss."""
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    weights = separate(np.load(given["weights"]))
    is_decayed = {name: w.ndim > 1 and name != "embed.weight" for name, w in weights.items()}
    groups = [
        {"params": [w for name, w in weights.items() if is_decayed[name] is wanted], "weight_decay": decay}
        for wanted, decay in ((True, DECAY), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=given["lr"], betas=BETAS, eps=1e-8, fused=True)
    turns = rotary(given["seq"], weights["embed.weight"].shape[1] // HEADS)
    for line in sys.stdin:
        asked = json.loads(line)
        used, started = cpu_seconds(), time.perf_counter()
        loss = float("nan")
        for number in range(asked["first"], asked["first"] + asked["steps"]):
            tokens = tokens_of(number, given, weights["embed.weight"].shape[0])
            loss = step(weights, optimizer, turns, tokens, getattr(torch, given["dtype"]))
        cpu, wall = cpu_seconds() - used, time.perf_counter() - started
        answer = {"cpu": cpu / asked["steps"], "wall": wall / asked["steps"], "loss": loss}
        print(json.dumps(answer), flush=True)


def separate(stacked: Mapping[str, np.ndarray]) -> Weights:
    """One leaf a layer, as a torch model has them: the gradient of a stack would be put together anew."""
    weights = {}
    for name, array in stacked.items():
        if not name.startswith("layers."):
            weights[name] = torch.tensor(array).requires_grad_()
            continue
        for layer, part in enumerate(array):
            weights[name.replace("layers.", f"{layer}.")] = torch.tensor(part).requires_grad_()
    return weights


def tokens_of(number: int, given: dict[str, Any], vocab: int) -> torch.Tensor:
    """The random tokens of one step, as in bench/training.py."""
    shape = (given["batch"], given["seq"] + 1)
    return torch.tensor(np.random.default_rng(number).integers(0, vocab, shape, dtype=np.int32)).long()


def step(
    weights: Weights, optimizer: torch.optim.Optimizer, turns: Any, tokens: torch.Tensor, dtype: torch.dtype
) -> float:
    """Forward, backward, clip, update."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        scores = forward(weights, turns, tokens[:, :-1])
    loss = functional.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
    optimizer.step()
    return loss.item()


def forward(weights: Weights, turns: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Scores of every token."""
    x = weights["embed.weight"][tokens]
    batch, seq, hidden = x.shape
    for layer in range(sum(name.endswith(".attention_norm") for name in weights)):
        prefix = f"{layer}."
        w = {name.removeprefix(prefix): part for name, part in weights.items() if name.startswith(prefix)}
        a = norm(x, w["attention_norm"])
        q, k, v = ((a @ w[f"attention.{n}"]).view(batch, seq, HEADS, -1).transpose(1, 2) for n in "qkv")
        y = functional.scaled_dot_product_attention(turn(q, turns), turn(k, turns), v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(batch, seq, hidden) @ w["attention.out"]
        m = norm(x, w["mlp_norm"])
        x = x + (functional.silu(m @ w["mlp.gate"]) * (m @ w["mlp.up"])) @ w["mlp.down"]
    return norm(x, weights["final_norm"]) @ weights["embed.weight"].T


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm in float32."""
    return functional.rms_norm(x.float(), (x.shape[-1],), weight, EPS)


def rotary(seq: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the positions."""
    frequencies = THETA ** -(torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(seq).float(), frequencies)
    return angles.cos(), angles.sin()


def turn(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions, paired as halves; back in the dtype of the products."""
    cos, sin = turns
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
