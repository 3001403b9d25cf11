"""One whole training step against torch: workload A of spec/training.md (10.5 M dense, AdamW, clip, bf16).

All sides start from the same weights, read the same random tokens, wait for every step, and must reach the
same loss. The peer is eager torch with SDPA and fused AdamW, the best of float32 and bf16 autocast and of one
and two threads, run by the interpreter in LMLAB_PEER_TORCH (or this one, if it has torch). Rounds alternate.
CPU-seconds are what a shared machine disturbs least. `--json` prints one line a figure.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmlab.core import environ
from lmlab.models.config import Dense
from lmlab.models.loss import mean_loss
from lmlab.science.flops import flops_per_token
from lmlab.training import optim, update
from lmlab.training.recipe import AdamW, Mix, Run
from lmlab.training.stream import Rows

MODEL = Dense(vocab=8192, hidden=256, layers=8, heads=4, kv_heads=4, mlp_width=1024, tied=True)
BATCH, SEQ, LR, ROUNDS, STEPS = 4, 256, 1e-3, 7, 3
PEER_SETTINGS = [("bfloat16", 1), ("bfloat16", 2), ("float32", 1), ("float32", 2)]
Seconds = dict[str, float]


def main() -> None:
    """Measure, check that all sides trained alike, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    show = print_json if parser.parse_args().json else print_plain
    run = Run(model=MODEL, data=Mix({"random": 1.0}), optimizer=AdamW(lr=LR), batch=BATCH, seq=SEQ, steps=1)
    state = update.init_state(run)
    python = environ.get("LMLAB_PEER_TORCH") or (sys.executable if find_spec("torch") else None)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "weights.npz", **optim.flatten(state["params"]))
        peers = [Peer(python, Path(folder), *settings) for settings in PEER_SETTINGS] if python else []
        ours = Ours(run, state)
        rounds = [[side.advance(number) for side in (ours, *peers)] for number in range(ROUNDS)]
        for peer in peers:
            peer.close()
    for figure in [*against_torch(rounds[1:]), *parts(run, state)]:
        show(figure)


def rows_of(number: int) -> Rows:
    """The random tokens of one step."""
    tokens = np.random.default_rng(number).integers(0, MODEL.vocab, (BATCH, SEQ + 1), dtype=np.int32)
    shape = (BATCH, SEQ)
    return Rows(tokens[:, :-1], tokens[:, 1:], np.ones(shape, np.float32), np.zeros(shape, np.int32))


class Ours:
    """The compiled step of `lmlab train`."""

    def __init__(self, run: Run, state: update.State) -> None:
        self.state = jax.tree.map(jnp.copy, state)
        self.step, _ = update.compiled(run, self.state, rows_of(0))

    def advance(self, number: int) -> Seconds:
        """STEPS steps: the seconds of one, and the last loss."""
        used, started = cpu_seconds(), time.perf_counter()
        loss = float("nan")
        for place in range(number * STEPS, (number + 1) * STEPS):
            batch = update.on_device(rows_of(place))
            self.state, metrics = self.step(self.state, batch, jnp.float32(1), jnp.float32(place + 1))
            loss = float(metrics["train/loss"])
        cpu, wall = cpu_seconds() - used, time.perf_counter() - started
        return {"cpu": cpu / STEPS, "wall": wall / STEPS, "loss": loss}


class Peer:
    """The same steps by torch, in a process that does a round for every line it is sent."""

    def __init__(self, python: str, folder: Path, dtype: str, threads: int) -> None:
        weights = str(folder / "weights.npz")
        given = {
            "weights": weights,
            "batch": BATCH,
            "seq": SEQ,
            "lr": LR,
            "dtype": dtype,
            "threads": threads,
        }
        program = Path(__file__).parent / "peers" / "training.py"
        self.process = subprocess.Popen(
            [python, str(program), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def advance(self, number: int) -> Seconds:
        """STEPS steps: the seconds of one, and the last loss."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"first": number * STEPS, "steps": STEPS}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the torch peer ended early; its message stands above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def against_torch(rounds: list[list[Seconds]]) -> list[dict[str, Any]]:
    """The best round of ours and of the best peer, per CPU-second and per second."""
    losses = [side["loss"] for side in rounds[-1]]
    # bf16 products round at 0.4 %, and the sides sum in another order.
    same_work = max(losses) - min(losses) < 0.02 if len(losses) > 1 else None
    figures = []
    for kind, unit in (("cpu", "tokens/CPU-s"), ("wall", "tokens/s")):
        speeds = [BATCH * SEQ / min(row[side][kind] for row in rounds) for side in range(len(losses))]
        best = max(range(1, len(speeds)), key=speeds.__getitem__, default=None)
        found = figure(f"T1-A {kind}", speeds[0], unit, "higher")
        if best is not None:
            name = "torch eager, {}, {} threads".format(*PEER_SETTINGS[best - 1])
            ratio = round(speeds[0] / speeds[best], 2)
            found |= {"peer": round(speeds[best], 1), "peer_name": name, "ratio": ratio}
            found["same_work"] = same_work
        figures.append(found)
    gigaflops = flops_per_token(MODEL.shape(SEQ)).training * BATCH * SEQ / 1e9
    return [
        *figures,
        figure("T1-A speed", gigaflops / min(r[0]["cpu"] for r in rounds), "GF/CPU-s", "higher"),
    ]


def parts(run: Run, state: update.State) -> list[dict[str, Any]]:
    """Where the CPU time of our step goes."""
    batch, one = update.on_device(rows_of(0)), jnp.float32(1)
    grads = jax.tree.map(lambda x: 0.01 * x, state["params"])

    def loss(params: optim.Params) -> Any:
        return mean_loss(params, run.model, batch)

    def turn(params: optim.Params, grads: optim.Params, moments: optim.Moments) -> Any:
        return optim.update(run.optimizer, params, optim.clip(grads, 1.0)[0], moments, (one, one))

    forward = fastest(lambda params: loss(params)[0], state["params"])
    both = fastest(jax.value_and_grad(loss, has_aux=True), state["params"])
    seconds = {
        "forward": forward,
        "backward": both - forward,
        "optimizer": fastest(turn, state["params"], grads, state["moments"]),
        "next batch": fastest_of(lambda: update.on_device(rows_of(1))),
    }
    return [figure(f"T1-A {part}", s * 1e3, "CPU-ms", "lower") for part, s in seconds.items()]


def fastest(function: Callable[..., Any], *arguments: Any) -> float:
    """Least CPU-seconds of the compiled function."""
    compiled = jax.jit(function).lower(*arguments).compile()
    return fastest_of(lambda: jax.block_until_ready(compiled(*arguments)))


def fastest_of(call: Callable[[], Any]) -> float:
    """Least CPU-seconds of a few calls."""
    found = []
    for _ in range(ROUNDS):
        used = cpu_seconds()
        call()
        found.append(cpu_seconds() - used)
    return min(found)


def cpu_seconds() -> float:
    """CPU time of this process so far, all its threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def figure(name: str, ours: float, unit: str, better: str) -> dict[str, Any]:
    """One measured number, without a peer."""
    value = {"name": name, "ours": round(ours, 1), "peer": None, "peer_name": None, "ratio": None}
    return {**value, "unit": unit, "better": better, "same_work": None, "runs": ROUNDS - 1}


def print_json(found: dict[str, Any]) -> None:
    """One line for a program."""
    print(json.dumps(found), flush=True)


def print_plain(found: dict[str, Any]) -> None:
    """One line for a person."""
    print(" ".join(f"{key}={value}" for key, value in found.items() if value is not None), flush=True)


if __name__ == "__main__":
    main()
