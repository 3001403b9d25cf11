"""The training loop: begin or resume, step, look, save. `fit` is the plain function under the step `train`.

The same recipe gives the same losses, however often a run was stopped: the state is the arrays and an
integer, the text is a pure function of that integer, and saving by the clock only copies.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from os import PathLike, fspath
from types import FrameType
from typing import Any

import jax.numpy as jnp

from lmlab.core.config import decode
from lmlab.core.errors import LmlabError
from lmlab.core.units import format_seconds
from lmlab.science.flops import flops_per_token
from lmlab.storage import Path, read_json
from lmlab.telemetry.tracker import JsonLines, read_metrics
from lmlab.training import identity, update
from lmlab.training.checkpoint import Checkpoints, Position
from lmlab.training.data import Inputs, open_inputs
from lmlab.training.recipe import Run
from lmlab.training.stream import Rows, prefetched

Status = Callable[..., None]
Clock = Callable[[], float]
STATUS_EVERY_S = 0.2


class Diverged(LmlabError):
    """The loss or its gradient stopped being a number."""


@dataclass(frozen=True)
class Result:
    """What a finished run says about itself."""

    steps: int
    """Steps of the run."""
    tokens: int
    """Tokens read."""
    params: int
    """Parameters, all experts included."""
    active_params: int
    """Parameters that one token touches."""
    flops: float
    """Forward and backward FLOPs of all tokens, LM head included, without recomputation."""
    loss: float
    """Mean training loss of the last tenth of the steps, nats per token."""
    holdout_macro_bpb: float | None
    """Mean over the domains of the held-out bits per byte; None without validation."""
    train_seconds: float
    """Seconds of training over all attempts; compiling and validation not included."""
    compile_seconds: float
    """Seconds of compiling over all attempts."""
    tokens_per_second: float
    """Tokens over `train_seconds`."""


def fit(
    run: Run, folder: PathLike[str], *, status: Status | None = None, clock: Clock = time.perf_counter
) -> Result:
    """Train `run` in `folder`, from its newest checkpoint if it has one.

    Writes `recipe.json`, `metrics.jsonl`, `checkpoints/` and at the end `summary.json`; where that exists,
    the run is finished and its summary is returned. SIGINT and SIGTERM save, then raise
    KeyboardInterrupt; the same call goes on from there. Raises ConfigError when the folder holds a
    run of another recipe, `Diverged` when the loss is not finite.
    """
    place = Path(fspath(folder))
    inputs = open_inputs(run)
    identity.keep(run, place)
    summary = place / "summary.json"
    if summary.exists():
        return decode(Result, read_json(summary))
    checkpoints = Checkpoints(place)
    attempt = _Attempt(run, place, inputs, checkpoints, status or _silent, clock)
    try:
        with stop_requests() as stop:
            attempt.begin()
            attempt.train(stop)
        return attempt.finish()
    finally:
        attempt.close()


@dataclass(eq=False)
class _Attempt:
    """One attempt at a run: what the loop moves on, and where it reports."""

    run: Run
    folder: Path
    inputs: Inputs
    checkpoints: Checkpoints
    status: Status
    clock: Clock
    state: update.State = field(init=False)
    position: Position = field(init=False)
    tracker: JsonLines | None = field(init=False, default=None)
    step: update.Step = field(init=False)
    read_held_out: Callable[[Any], dict[str, float]] | None = field(init=False, default=None)
    tokens_per_second: float = field(init=False, default=0.0)

    def begin(self) -> None:
        """Restore or make the state, and compile."""
        run = self.run
        self.state, self.position = update.init_state(run), Position(step=0)
        restored = self.checkpoints.latest()
        if restored is not None:
            self.position, weights, moments = restored
            self.state = update.restored(self.state, weights | {"moments": moments})
        self.tracker = JsonLines(self.folder, rows=self.position.rows)
        self.status(f"compiling for {run.batch} x {run.seq} tokens", self.position.step, run.steps)
        self.step, seconds = update.compiled(run, self.state, self.inputs.stream.batch(0))
        if self.inputs.held_out:
            self.read_held_out, more = update.held_out_reader(run, self.inputs.held_out, self.state)
            seconds += more
        self.position = replace(self.position, compile_seconds=self.position.compile_seconds + seconds)

    def train(self, stop: "Stop") -> None:
        """Steps until the end, or until asked to stop."""
        run, first = self.run, self.position.step
        if first:
            self._look()  # a checkpoint is written before the held-out text is read at its step
        last_saved = last_shown = before = self.clock()
        for number, rows in prefetched(self.inputs.stream, first, run.steps):
            metrics = self._step(number, rows)
            now = self.clock()
            self._record(metrics, now - before)
            if now - last_shown >= STATUS_EVERY_S:
                self.status(self._progress(metrics["train/loss"]), number + 1, run.steps)
                last_shown = now
            if stop.asked or self._must_save(now - last_saved):
                self._save()
                last_saved = now
            if stop.asked:
                self.checkpoints.wait()
                raise KeyboardInterrupt(
                    f"saved at step {number + 1} of {run.steps}; the same command goes on"
                )
            self._look()
            before = self.clock()

    def finish(self) -> Result:
        """The summary of the finished run, from its rows, which cover all attempts."""
        assert self.tracker is not None
        self.checkpoints.wait()
        result = self._result()
        self.tracker.summary(asdict(result))
        return result

    def close(self) -> None:
        """Let go of files and threads; what is being saved is finished."""
        if self.tracker is not None:
            self.tracker.finish()
        self.checkpoints.close()

    def _result(self) -> Result:
        run, position = self.run, self.position
        rows = read_metrics(self.folder / "metrics.jsonl")
        losses = [row["train/loss"] for row in rows if "train/loss" in row][-max(1, run.steps // 10) :]
        readings = [row["holdout/macro_bpb"] for row in rows if "holdout/macro_bpb" in row]
        return Result(
            steps=run.steps,
            tokens=run.tokens,
            params=run.model.param_count(),
            active_params=run.model.active_param_count(),
            flops=self._flops(run.tokens),
            loss=sum(losses) / len(losses),
            holdout_macro_bpb=readings[-1] if readings else None,
            train_seconds=position.train_seconds,
            compile_seconds=position.compile_seconds,
            tokens_per_second=run.tokens / max(position.train_seconds, 1e-9),
        )

    def _step(self, number: int, rows: Rows) -> dict[str, float]:
        run = self.run
        factor = run.schedule.factor(number, run.steps)
        scalars = (jnp.float32(factor), jnp.float32(number + 1))
        self.state, found = self.step(self.state, update.on_device(rows), *scalars)
        metrics = {name: float(value) for name, value in found.items()}
        for name in ("train/loss", "train/grad_norm"):
            if not math.isfinite(metrics[name]):
                raise Diverged(
                    f"{name} is {metrics[name]} at step {number + 1} of {run.steps}, so all later steps "
                    f"would be noise. Lower optimizer.lr={run.optimizer.lr:.3g} or warm up longer, under "
                    "another version."
                )
        return {**metrics, "lr": run.optimizer.lr * factor}

    def _record(self, metrics: dict[str, float], seconds: float) -> None:
        step, elapsed = self.position.step + 1, self.position.train_seconds + seconds
        tokens = step * self.run.tokens_per_step
        speed = self.run.tokens_per_step / max(seconds, 1e-9)
        self.tokens_per_second = (
            speed if not self.tokens_per_second else 0.9 * self.tokens_per_second + 0.1 * speed
        )
        self.position = replace(self.position, step=step, tokens=tokens, train_seconds=elapsed)
        place = {"tokens": tokens, "flops": self._flops(tokens), "elapsed_s": elapsed}
        self._log({**place, **metrics, "throughput/tokens_per_s": speed})

    def _look(self) -> None:
        """Read the held-out text where it is due: every so many steps, and at the end."""
        step, every = self.position.step, self.run.validation_every
        due = step == self.run.steps or (every is not None and step % every == 0)
        if self.read_held_out is not None and due:
            self.status("reading the held-out text", step, self.run.steps)
            place = {"tokens": self.position.tokens, "flops": self._flops(self.position.tokens)}
            self._log(place | self.read_held_out(update.applied(self.state)))

    def _log(self, row: dict[str, float | int]) -> None:
        assert self.tracker is not None
        self.tracker.log(row, self.position.step)
        self.position = replace(self.position, rows=self.position.rows + 1)

    def _must_save(self, seconds: float) -> bool:
        step, run = self.position.step, self.run
        by_time = run.checkpoint_every_s is not None and seconds >= run.checkpoint_every_s
        by_step = run.checkpoint_every_steps is not None and step % run.checkpoint_every_steps == 0
        return by_time or by_step or step == run.steps

    def _save(self) -> None:
        sequences = self.inputs.stream.sequences(self.position.step)
        weights = {name: part for name, part in self.state.items() if name != "moments"}
        self.checkpoints.save(replace(self.position, sequences=sequences), weights, self.state["moments"])

    def _flops(self, tokens: int) -> float:
        return tokens * flops_per_token(self.run.model.shape(self.run.seq)).training

    def _progress(self, loss: float) -> str:
        left_s = (self.run.tokens - self.position.tokens) / self.tokens_per_second
        return f"loss {loss:.3f} · {self.tokens_per_second:,.0f} tokens/s · {format_seconds(left_s)} left"


@dataclass
class Stop:
    """Whether a signal asked the run to stop."""

    asked: bool = False


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Turn the first SIGINT or SIGTERM into a request; the second one is an ordinary KeyboardInterrupt.

    Only the main thread of a process hears signals; elsewhere nobody can ask.
    """
    stop = Stop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _silent(text: str, done: int | None = None, total: int | None = None) -> None:
    """Where nobody looks."""
