"""A training run as data: which model, which text, which optimizer, how long. No jax here.

A recipe is frozen and checked when it is made, so a typo fails before any work starts. What a run *is*
stands in the fields; where and how often it is saved or looked at (`CADENCE`) never changes its result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lmlab.core.errors import ConfigError
from lmlab.models.config import Model
from lmlab.science.flops import flops_per_token

Precision = Literal["bfloat16", "float32"]
Shape = Literal["linear", "cosine"]
Number = float | int  # 1 is a good share; beartype, unlike type checkers, tells them apart
Groups = tuple[tuple[str, str], ...]

# The first pattern found in a parameter's path decides; `rule` says what moves it (see optim.py).
# Grug: matrices get orthogonal steps, embedding and head steps of fixed norm, the rest plain Adam
# (AdamH on the router lost: marin#5211; Adam on the embedding let its norm grow: marin#5184).
MUONH_GROUPS: Groups = (
    (r"^router_bias$", "frozen"),
    (r"norm\.weight$|norm$|router$|head_gate$|bias$", "adam"),
    (r"^embed\.weight$|^head$", "adamh"),
    (r"", "muonh"),
)
ADAMW_GROUPS: Groups = (
    (r"^router_bias$", "frozen"),
    (r"norm\.weight$|norm$|router$|head_gate$|bias$|^embed\.weight$", "adam"),
    (r"", "adamw"),
)

# Fields of Run that say when to look and when to save. They may change between attempts of one run.
CADENCE = (
    "validation",
    "validation_every",
    "validation_tokens",
    "checkpoint_every_s",
    "checkpoint_every_steps",
)


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a share of its peak: warm-up, stable, decay to `final`."""

    warmup: Number = 0.05
    """Share of the steps that rise linearly from 0; [0, 1]."""
    decay: Number = 0.95
    """Share of the steps, at the end, that fall to `final`; [0, 1]."""
    shape: Shape = "linear"
    """Form of the decay."""
    final: Number = 0.0
    """Share of the peak that is left at the end; [0, 1]."""

    def __post_init__(self) -> None:
        for name in ("warmup", "decay", "final"):
            _check_between(f"schedule.{name}", getattr(self, name), 0, 1)
        if self.warmup + self.decay > 1 + 1e-9:
            raise ConfigError(
                f"schedule: warmup={self.warmup} and decay={self.decay} add up to more than the whole run. "
                "Give shares of the steps whose sum is at most 1."
            )

    def factor(self, step: int, steps: int) -> float:
        """Share of the peak used by step `step` (0-based) of `steps`.

        >>> [Schedule(warmup=0.2, decay=0.4).factor(step, 10) for step in (0, 1, 2, 8, 9)]
        [0.5, 1.0, 1.0, 0.4, 0.2]
        """
        rising = round(self.warmup * steps)
        falling = round(self.decay * steps)
        if step < rising:
            return (step + 1) / rising
        left = steps - step
        if left > falling:
            return 1.0
        # The last step still learns a little: the one after it would be at `final`.
        share = left / (falling + 1)
        fall = share if self.shape == "linear" else (1 - math.cos(math.pi * share)) / 2
        return self.final + (1 - self.final) * fall


@dataclass(frozen=True)
class MuonH:
    """Muon directions on spheres of fixed norm for matrices, AdamH for embedding and head, Adam for the rest.

    Source: the open Grug recipe (marin#5596, #5184, #6074). There is no weight decay: the norm of each
    matrix stays what it was at the start, so `lr` is the angle by which a step turns it.
    """

    lr: Number
    """Peak step of MuonH matrices, as a share of the matrix's own norm; (0, 1)."""
    adam_lr: Number
    """Peak learning rate of the Adam group; > 0."""
    adamh_lr: Number | None = None
    """Peak step of the AdamH group, as a share of the norm; None = `lr`."""
    momentum: Number = 0.95
    """Nesterov momentum of MuonH; [0, 1)."""
    newton_schulz_steps: int = 5
    """Iterations of the orthogonalization; 1 to 10."""
    beta1: Number = 0.9062
    """First Adam moment; [0, 1)."""
    beta2: Number = 0.95
    """Second Adam moment; [0, 1)."""
    eps: Number = 1e-12
    """Added to the root of the second moment; > 0."""
    clip: Number | None = 1.0
    """Largest norm of the gradient of *all* parameters together; None = off."""
    groups: Groups = MUONH_GROUPS
    """(pattern, rule) rows; the first pattern found in a parameter's path decides its rule."""

    def __post_init__(self) -> None:
        _check_optimizer(self, "muonh")
        _check_between("optimizer.momentum", self.momentum, 0, 1)
        if not 1 <= self.newton_schulz_steps <= 10:
            raise ConfigError(
                f"optimizer.newton_schulz_steps={self.newton_schulz_steps}, but the iteration is tuned for "
                "5. Choose 1 to 10."
            )

    @classmethod
    def sized(cls, hidden: int, tokens: int, tokens_per_batch: int, **changes: Any) -> "MuonH":
        """The optimizer for a model of width `hidden` trained on `tokens` tokens.

        The rates are the fit of marin#5951 (R² .996 over Grug runs of billions of tokens), but in a short run
        at least what lets parameters arrive: a gain moves by up to `adam_lr` a step and has to grow from 1 to
        about 5 before logits of fixed-norm weights are sharp, and a matrix turns by `lr` a step. Where the
        fit says .009 (128 wide, 120 steps of the quick start), .02 gives 2.46 bits per byte, .12 gives 2.27.
        The second moment looks back over at most a tenth of the run.
        """
        _check_positive(hidden=hidden, tokens=tokens, tokens_per_batch=tokens_per_batch)
        steps = max(1, tokens // tokens_per_batch)
        fit = min(0.06602 * tokens**-0.395 * hidden**-0.15 * math.sqrt(tokens_per_batch), 0.05)
        beta2 = min(max(0.999 ** (tokens_per_batch / 131_072), 0.95), 0.9999, max(0.95, 1 - 10 / steps))
        sized = cls(
            lr=min(max(13 / 3 * fit, 8 / steps), 0.1),
            adam_lr=min(max(fit, 12 / steps), 0.1),
            beta2=beta2,
        )
        return replace(sized, **changes)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay on matrices (none on norms, embedding and biases)."""

    lr: Number
    """Peak learning rate; > 0."""
    weight_decay: Number = 0.1
    """Share of a matrix that one step at learning rate 1 takes away; >= 0."""
    beta1: Number = 0.9
    """First moment; [0, 1)."""
    beta2: Number = 0.95
    """Second moment; [0, 1)."""
    eps: Number = 1e-8
    """Added to the root of the second moment; > 0."""
    clip: Number | None = 1.0
    """Largest norm of the gradient of *all* parameters together; None = off."""
    groups: Groups = ADAMW_GROUPS
    """(pattern, rule) rows; the first pattern found in a parameter's path decides its rule."""

    def __post_init__(self) -> None:
        _check_optimizer(self, "adamw")
        if self.weight_decay < 0:
            raise ConfigError(
                f"optimizer.weight_decay={self.weight_decay} would grow the weights. Give >= 0."
            )

    @property
    def adam_lr(self) -> float:
        """The rate of parameters without decay: the same."""
        return self.lr


Optimizer = MuonH | AdamW
RULES = {"muonh": ("muonh", "adamh", "adam", "frozen"), "adamw": ("adamw", "adam", "frozen")}


@dataclass(frozen=True)
class Mix:
    """Which text, in which proportion: a weight for each token store, and inside one store a share for
    each domain in proportion to tokens ** alpha.
    """

    stores: Mapping[Any, Number]
    """Weight of each token store (an Artifact); >= 0, sum > 0."""
    alpha: Number = 0.5
    """1 = domains as large as they are, 0 = all domains alike; [0, 1]."""
    block: int = 256
    """Sequences among which every source gets an exact count; >= 1."""

    def __post_init__(self) -> None:
        if not self.stores or any(not weight >= 0 for weight in self.stores.values()):
            raise ConfigError(
                f"mix: the weights are {list(self.stores.values())}. Give at least one token store, "
                "each with a weight >= 0."
            )
        if not sum(self.stores.values()) > 0:
            raise ConfigError(
                "mix: the weights sum to 0, so no text would be drawn. Give one store a weight."
            )
        _check_between("mix.alpha", self.alpha, 0, 1)
        _check_positive(block=self.block)


@dataclass(frozen=True)
class Run:
    """One training run. `batch * seq * steps` tokens are read; the same recipe gives the same losses."""

    model: Model
    """The architecture."""
    data: Mix
    """The text."""
    optimizer: Optimizer
    """What turns gradients into steps."""
    batch: int
    """Sequences per step."""
    seq: int
    """Tokens per sequence."""
    steps: int
    """Steps of the whole run."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the run."""
    seed: int = 0
    """Of the initial weights and of the order of the text."""
    dtype: Precision = "bfloat16"
    """Number format of the matrix products; weights, moments and losses are always float32."""
    validation: Any | None = None
    """Token store of held-out text; None = no validation."""
    validation_every: int | None = None
    """Steps between readings of the held-out text; None = only at the end."""
    validation_tokens: int = 4096
    """Held-out tokens read per domain, whole documents, the same at each reading."""
    checkpoint_every_s: Number | None = 30.0
    """Seconds of training between checkpoints; None = only by steps and at the end."""
    checkpoint_every_steps: int | None = None
    """Steps between checkpoints; None = only by time and at the end."""

    def __post_init__(self) -> None:
        _check_positive(batch=self.batch, seq=self.seq, steps=self.steps)
        _check_positive(validation_tokens=self.validation_tokens)
        for name in ("validation_every", "checkpoint_every_steps", "checkpoint_every_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"run.{name}={value}. Give a number above 0, or None for never.")

    @property
    def tokens_per_step(self) -> int:
        """Tokens read by one step."""
        return self.batch * self.seq

    @property
    def tokens(self) -> int:
        """Tokens read by the whole run."""
        return self.tokens_per_step * self.steps

    @property
    def flops(self) -> float:
        """Training FLOPs of the whole run, LM head included."""
        return self.tokens * flops_per_token(self.model.shape(self.seq)).training


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name}={value}, so there is nothing to train on. Give 1 or more.")


def _check_between(name: str, value: Number, low: Number, high: Number) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}={value} is outside [{low}, {high}]. Choose a value inside.")


def _check_optimizer(optimizer: Optimizer, kind: str) -> None:
    for name in ("lr", "adam_lr", "eps"):
        value = getattr(optimizer, name)
        if not 0 < value < 1:
            raise ConfigError(
                f"optimizer.{name}={value}, but a useful value lies between 0 and 1. Change it."
            )
    for name in ("beta1", "beta2"):
        value = getattr(optimizer, name)
        if not 0 <= value < 1:
            raise ConfigError(
                f"optimizer.{name}={value}, but a moment forgets at a rate in [0, 1). Change it."
            )
    if optimizer.clip is not None and not optimizer.clip > 0:
        raise ConfigError(
            f"optimizer.clip={optimizer.clip} would stop all learning. Give > 0, or None for off."
        )
    for pattern, rule in optimizer.groups:
        if rule not in RULES[kind]:
            raise ConfigError(
                f"optimizer.groups sends {pattern!r} to {rule!r}, which {kind} does not have. "
                f"Choose from {', '.join(RULES[kind])}."
            )
