"""Loss and gradient of a model against torch, and the matrix products that decide their speed.

Workload A of spec/training.md (10.49 M dense, sequences of 256, batch 4 and 16), the same weights and tokens.
The peer is transformers' Llama, eager with SDPA, the best of one and two threads, keeping freed memory as we
do, run by the interpreter in LMLAB_PEER_TORCH (or this one, if it has torch). Rounds alternate; figures are
the best round's CPU-seconds, which a shared machine disturbs least. Then Grug at the quick start's shapes,
and each form of a product with and without pinned layouts: re-run it whenever jax is updated.
`--json` prints one object a line.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lmlab.core import environ
from lmlab.models.config import Dense, Grug, Model
from lmlab.models.decoder import init_params
from lmlab.models.hf import export_folder
from lmlab.models.host import keep_freed_memory
from lmlab.models.layers import Params, product_nn, product_nt, transpose_apart
from lmlab.models.loss import Batch, mean_loss
from lmlab.science.flops import flops_per_token

WORKLOAD_A = Dense(vocab=8192, hidden=256, layers=8, heads=4, kv_heads=4, mlp_width=1024, tied=True)
SEQ, ROUNDS = 256, 6
GRUGS = {
    "256 wide, 3 layers": Grug.sized(256, vocab=8192),
    "256 wide, 6 layers": Grug.sized(256, vocab=8192, layers=6),
    "384 wide, 3 layers": Grug.sized(384, vocab=8192, layers=3),
}
Figure = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    keep_freed_memory()
    for found in [*against_torch(), *grugs(), *products()]:
        line = json.dumps(found) if as_json else " ".join(f"{k}={v}" for k, v in found.items())
        print(line, flush=True)


def against_torch() -> list[Figure]:
    """Workload A, each dtype and batch."""
    params = init_params(WORKLOAD_A, jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, WORKLOAD_A.vocab, (16, SEQ + 1), dtype=np.int32)
    python = environ.get("LMLAB_PEER_TORCH") or (sys.executable if find_spec("torch") else None)
    with tempfile.TemporaryDirectory() as folder:
        peer = None if python is None else start_peer(python, Path(folder), params, tokens)
        found = [
            compare(params, tokens[:batch], dtype, peer)
            for dtype in ("bfloat16", "float32")
            for batch in (4, 16)
        ]
        if peer is not None:
            peer.communicate()
    return found


def start_peer(python: str, folder: Path, params: Params, tokens: np.ndarray) -> "subprocess.Popen[str]":
    """Export the parameters, and a process that reads them."""
    vocab = {f"t{i}": i for i in range(WORKLOAD_A.vocab)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t0"}))
    export_folder(WORKLOAD_A, params, folder, folder)
    np.save(folder / "tokens.npy", tokens)
    command = [
        python,
        str(Path(__file__).parent / "peers" / "models.py"),
        str(folder),
        f"{folder}/tokens.npy",
    ]
    # What keep_freed_memory() does for us: the peer page-faults as much without it.
    kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_ARENA_MAX": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=quiet,
        text=True,
        env=environ.child_environment(**kept),
    )


def compare(params: Params, tokens: np.ndarray, dtype: str, peer: "subprocess.Popen[str] | None") -> Figure:
    """Alternate rounds; the best of each side, if both found the same loss."""
    step, cost = compiled(WORKLOAD_A, params, tokens, dtype), tokens[:, 1:].size
    ours = [timed(step) for _ in range(2)][1:]
    theirs: list[tuple[float, float, int]] = []
    for number in range(ROUNDS):
        ours.append(timed(step))
        if peer is not None:
            theirs.append(ask(peer, len(tokens), dtype, threads=1 + number % 2))
    seconds, loss = min(ours)
    found = figure(f"T1-A loss+gradient {dtype} batch {len(tokens)}", cost / seconds, "tokens/CPU-s")
    if theirs:
        best = min(theirs)
        found |= {
            "peer": round(cost / best[0], 1),
            "peer_name": f"transformers Llama, torch eager {dtype}, {best[2]} threads",
            "ratio": round(best[0] / seconds, 2),
            "same_work": abs(loss - best[1]) < (0.02 if dtype == "bfloat16" else 1e-4),
        }
    return found


def ask(peer: "subprocess.Popen[str]", batch: int, dtype: str, *, threads: int) -> tuple[float, float, int]:
    """CPU-seconds, loss and threads of one round of the peer."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(json.dumps({"batch": batch, "dtype": dtype, "threads": threads}) + "\n")
    peer.stdin.flush()
    line = peer.stdout.readline()
    if not line:
        raise SystemExit("the torch peer ended early: run it by hand with bench/peers/models.py")
    answer = json.loads(line)
    return answer["cpu"], answer["loss"], threads


def compiled(model: Model, params: Params, tokens: np.ndarray, dtype: str) -> Callable[[], float]:
    """Loss and gradient as one program; the call waits for both."""
    inputs, targets = jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])
    batch = Batch(inputs, targets, jnp.ones(targets.shape), None)

    def loss(params: Params, batch: Batch) -> Any:
        return mean_loss(params, model, batch, dtype=jnp.dtype(dtype))

    program = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params, batch).compile()
    return lambda: float(jax.block_until_ready(program(params, batch))[0][0])


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """CPU-seconds and result of one call."""
    used = cpu_seconds()
    loss = step()
    return cpu_seconds() - used, loss


def grugs() -> list[Figure]:
    """Speed and utilization of Grug, 4,096 tokens a step."""
    found = []
    for name, model in GRUGS.items():
        tokens = np.random.default_rng(0).integers(0, model.vocab, (16, SEQ + 1), dtype=np.int32)
        step = compiled(model, init_params(model, jax.random.key(0)), tokens, "bfloat16")
        seconds = min(timed(step)[0] for _ in range(ROUNDS))
        speed = tokens[:, 1:].size / seconds
        found.append(figure(f"Grug {name}", speed, "tokens/CPU-s"))
        flops = flops_per_token(model.shape(SEQ)).training
        found.append(figure(f"Grug {name}, arithmetic", flops * speed / 1e9, "GF/CPU-s"))
    return found


def products() -> list[Figure]:
    """Each form of a product, ours beside what XLA makes of the plain one."""
    forms: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "NN (forward)": (product_nn, lambda a, b: plain(a, b, 1, 0)),
        "NT (input gradient)": (product_nt, lambda a, b: plain(a, b, 1, 1)),
        "TN (weight gradient)": (
            lambda a, b: product_nn(transpose_apart(a), b),
            lambda a, b: plain(a, b, 0, 0),
        ),
    }
    found = []
    for rows, inner, outer in ((4096, 256, 256), (4096, 256, 1024), (512, 256, 8192)):
        shapes = (
            ((rows, inner), (inner, outer)),
            ((rows, outer), (inner, outer)),
            ((rows, inner), (rows, outer)),
        )
        for (form, (pinned, usual)), (left, right) in zip(forms.items(), shapes, strict=True):
            for dtype in ("bfloat16", "float32"):
                a, b = (jnp.ones(shape, dtype) for shape in (left, right))
                speeds = [2e-9 * rows * inner * outer / product_seconds(f, a, b) for f in (pinned, usual)]
                one = figure(f"{form} {rows}x{inner}x{outer} {dtype}", speeds[0], "GF/CPU-s")
                ratio = round(speeds[0] / speeds[1], 2)
                peer = {"peer": round(speeds[1], 1), "peer_name": "plain lax.dot_general", "ratio": ratio}
                found.append(one | peer | {"same_work": True})
    return found


def plain(a: jax.Array, b: jax.Array, contract_a: int, contract_b: int) -> jax.Array:
    """The product as one would write it."""
    dims = (((contract_a,), (contract_b,)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def product_seconds(function: Callable[..., Any], a: jax.Array, b: jax.Array) -> float:
    """CPU-seconds of one call, the best of some rounds of ten (CPU clocks tick coarsely)."""
    program = jax.jit(function).lower(a, b).compile()

    def ten() -> float:
        for _ in range(10):
            out = program(a, b)
        jax.block_until_ready(out)
        return 0.0

    ten()
    return min(timed(ten)[0] for _ in range(ROUNDS)) / 10


def cpu_seconds() -> float:
    """CPU time of this process so far, all its threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def figure(name: str, ours: float, unit: str) -> Figure:
    """One measured number, without a peer."""
    value = {"name": name, "ours": round(ours, 1), "peer": None, "peer_name": None, "ratio": None}
    return {**value, "unit": unit, "better": "higher", "same_work": None, "runs": ROUNDS}


if __name__ == "__main__":
    main()
