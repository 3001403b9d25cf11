"""The compiled parts of training: one step of a run, and the held-out loss. Pure functions of arrays."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lmlab.core.errors import ArtifactError
from lmlab.models.decoder import init_params
from lmlab.models.grug import apply_pending, router_bias_update
from lmlab.models.host import prepare_process
from lmlab.models.layers import RouterStats
from lmlab.models.loss import Batch, Losses, mean_loss, token_losses
from lmlab.training import optim
from lmlab.training.recipe import Run
from lmlab.training.stream import HeldOut, Rows

State = dict[str, Any]
"""`params`, `moments`, and for a model with a balanced router `pending_bias`: what the last step found."""
Metrics = dict[str, Array]
Step = Callable[[State, Batch, Float[Array, ""], Float[Array, ""]], tuple[State, Metrics]]
DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}


def init_state(run: Run) -> State:
    """Parameters from the run's seed, and zero moments."""
    prepare_process()

    @jax.jit  # one program: op by op, each shape of each random array is compiled by itself
    def make(key: Array) -> State:
        params = init_params(run.model, key)
        state: State = {"params": params, "moments": optim.init_moments(run.optimizer, params)}
        if "router_bias" in params:
            state["pending_bias"] = jnp.zeros_like(params["router_bias"])
        return state

    return make(jax.random.key(run.seed))


def train_step(run: Run) -> Step:
    """The function (state, batch, share of the peak learning rate, 1-based step) -> (state, metrics).

    The router bias found by the last step is applied before the forward pass, so a checkpoint always has
    one pending (spec T7).
    """
    dtype = DTYPES[run.dtype]

    def loss_of(params: optim.Params, batch: Batch) -> tuple[Array, Losses]:
        return mean_loss(params, run.model, batch, dtype=dtype)

    def step(
        state: State, batch: Batch, factor: Float[Array, ""], count: Float[Array, ""]
    ) -> tuple[State, Metrics]:
        params = applied(state)
        (loss, found), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        grads, norm = optim.clip(grads, run.optimizer.clip)
        params, moments = optim.update(run.optimizer, params, grads, state["moments"], (factor, count))
        new: State = {"params": params, "moments": moments}
        metrics = {"train/loss": loss, "train/grad_norm": norm}
        if "pending_bias" in state:
            new["pending_bias"] = router_bias_update(found.router)
        if found.router is not None:
            metrics |= router_metrics(found.router)
        return new, metrics

    return step


def applied(state: State) -> optim.Params:
    """The parameters as a forward pass sees them: with the pending router bias."""
    if "pending_bias" not in state:
        return state["params"]
    return apply_pending(state["params"], state["pending_bias"])


def router_metrics(router: RouterStats) -> Metrics:
    """Means over the layers of what says whether the experts are used evenly."""
    assigned = jnp.sum(router.counts, axis=-1)
    load = jnp.max(router.counts, axis=-1) * router.counts.shape[-1] / jnp.maximum(assigned, 1)
    return {
        "router/entropy": jnp.mean(router.entropy),
        "router/max_over_mean_load": jnp.mean(load),
        "router/overflow": jnp.sum(router.dropped) / jnp.maximum(jnp.sum(assigned), 1),
        "router/load_balance": jnp.mean(router.load_balance),
        "router/z": jnp.mean(router.z),
    }


def compiled(run: Run, state: State, rows: Rows) -> tuple[Step, float]:
    """The step compiled for these shapes, its state given away at each call; and the seconds it took."""
    started = time.perf_counter()
    prepare_process()
    one = jnp.float32(1)
    traced = jax.jit(train_step(run), donate_argnums=0).lower(state, on_device(rows), one, one)
    return traced.compile(), time.perf_counter() - started


def restored(fresh: State, saved: State) -> State:
    """The saved arrays on the device; an error names an array that the model of today does not have alike."""
    expected, found = optim.flatten(fresh), optim.flatten(saved)
    for path in sorted({*expected, *found}):
        shapes = [tuple(side[path].shape) if path in side else None for side in (expected, found)]
        if shapes[0] != shapes[1]:
            raise ArtifactError(
                f"the checkpoint has {path} of shape {shapes[1]}, but the model's is {shapes[0]}: the code "
                "of the model changed since. Train under a new version, or check out the commit of the run."
            )
    return jax.tree.unflatten(jax.tree.structure(fresh), [jnp.asarray(found[path]) for path in expected])


def on_device(rows: Rows) -> Batch:
    """The rows as jax arrays."""
    return Batch(*(jnp.asarray(array) for array in rows))


def held_out_reader(
    run: Run, pieces: Sequence[HeldOut], state: State
) -> tuple[Callable[[optim.Params], dict[str, float]], float]:
    """The compiled function parameters -> held-out metrics, and the seconds that compiling took.

    Metrics: nats per token, bits per byte of each domain, their mean (macro), and of all text (micro). Sums
    over batches are taken on the host in float64, and no batch holds text of two domains.
    """
    started = time.perf_counter()
    prepare_process()
    batches = [[on_device(rows) for rows in piece.batches()] for piece in pieces]
    nats_of = jax.jit(
        lambda params, batch: token_losses(params, run.model, batch, dtype=DTYPES[run.dtype])[0]
    )
    compiled_nats = nats_of.lower(applied(state), batches[0][0]).compile()

    def read(params: optim.Params) -> dict[str, float]:
        nats = [
            sum(float(np.asarray(compiled_nats(params, batch), np.float64).sum()) for batch in part)
            for part in batches
        ]
        return _holdout_metrics(pieces, nats)

    return read, time.perf_counter() - started


def _holdout_metrics(pieces: Sequence[HeldOut], nats: Sequence[float]) -> dict[str, float]:
    bits = [n / math.log(2) / piece.size_bytes for n, piece in zip(nats, pieces, strict=True)]
    return {
        "holdout/loss": sum(nats) / sum(float(piece.rows.weights.sum()) for piece in pieces),
        "holdout/macro_bpb": sum(bits) / len(bits),
        "holdout/micro_bpb": sum(nats) / math.log(2) / sum(piece.size_bytes for piece in pieces),
        **{f"holdout/bpb/{piece.domain}": value for piece, value in zip(pieces, bits, strict=True)},
    }
