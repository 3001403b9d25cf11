"""Bets as steps: filed from a ladder before its run starts, called from the run's own files after it ended.

Both read the recipes that training keeps beside each run, so the terms of the bet and of the measurement are
what was really trained, not what somebody typed. A term is compared by name; see `bets`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lmlab.artifacts import Artifact, Out, step
from lmlab.core.config import encode, fingerprint
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.science.laws import Floor, Scatter
from lmlab.storage import Path, read_json, write_json

if TYPE_CHECKING:
    from lmlab.science.bets import Term
    from lmlab.science.flops import Shape

FLOPS_ARE = "3 x forward, LM head included"


class Architecture(Protocol):
    """A model's config: what can be sized without its code."""

    def shape(self, seq: int) -> "Shape":
        """What costs FLOPs at `seq` tokens a sequence."""
        ...


@dataclass(frozen=True)
class Filed(Artifact):
    """A bet; its folder holds `bet.json`."""

    run: str
    """Name of the run it is about."""
    metric: str
    """What is predicted."""
    value: float
    """Prediction."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    flops: float
    """Training FLOPs of the run, counted as the ladder's are."""
    terms: dict[str, str | int | float]
    """What must hold of a measurement for it to count."""
    digest: str
    """sha256 of the bet."""


@dataclass(frozen=True)
class Called(Artifact):
    """How a bet ended."""

    outcome: str
    """"hit", "miss" or "not comparable"."""
    predicted: float
    low: float
    high: float
    measured: float
    error: float
    """Measured minus predicted: negative = better than predicted."""
    differs: tuple[str, ...]
    """The terms that differ, where not comparable."""
    reason: str
    """One sentence."""


@step(inline=True)
def file_bet(
    out: Out,
    ladder: Artifact,
    model: Architecture,
    run: str,
    tokens: int,
    seq: int,
    *,
    metric: str = "holdout/macro_bpb",
    floor: Floor | None = None,
    scatter: Scatter | None = Scatter(),
    level: float = 0.9,
) -> Filed:
    """Fit the ladder's rungs and file a prediction for `run` (`name` or `name@version`), before it starts.

    `floor=None` takes the range of `Floor.below`, `scatter=None` no prior on the residuals (three rungs then
    have Student's t with one degree of freedom). Refused if the run has started, or if the rungs were trained
    on sequences of another length.
    """
    from lmlab.science import bets
    from lmlab.science.flops import flops_per_token
    from lmlab.science.laws import Envelope, Point

    recipe = _rung_recipe(ladder)
    if recipe["seq"] != seq:
        raise ConfigError(
            f"The rungs of {ladder.address} read sequences of {recipe['seq']} tokens, the run {seq}: their "
            "law says nothing about it. Train the ladder at the run's length."
        )
    rungs = [
        Point(f"{ladder.address}/{rung['hidden']}", rung["flops"], rung[_field(metric)])
        for rung in ladder.result["rungs"]
    ]
    law = Envelope.fit(rungs, floor=floor or Floor.below(rungs), scatter=scatter)
    flops = flops_per_token(model.shape(seq)).training * tokens
    bet = bets.file(
        run,
        metric=metric,
        by=law,
        flops=flops,
        terms=_terms({**recipe, "model": encode(model)}, tokens, flops),
        started=_started(out, run),
        level=level,
    )
    bets.write(out.path / "bet.json", bet)
    kept = ("run", "metric", "value", "low", "high", "flops", "digest")
    return Filed(terms=dict(bet.terms), **{name: getattr(bet, name) for name in kept})


@step(inline=True)
def call_bet(out: Out, bet: Artifact, run: Artifact) -> Called:
    """Call a bet by the finished run: hit, miss, or not comparable naming the terms that differ."""
    from lmlab.artifacts.identity import spellings
    from lmlab.science import bets

    filed = bets.read(bet.path / "bet.json")
    recipe = _recipe(run.path)
    rows = _rows(run.path / "metrics.jsonl")
    readings = [row for row in rows if filed.metric in row]
    if not readings:
        raise ArtifactError(
            f"{run.address} has no reading of {filed.metric} in metrics.jsonl, so the bet can't be called. "
            "Train it with held-out text (Run.validation)."
        )
    result = run.result
    terms = _terms(recipe, result["tokens"], result["flops"])
    order = _order(bet, run)
    if order and order["filed"] > order["began"]:
        terms["filed"] = f"{order['filed'] - order['began']:.0f} s after the run began"
    named = run.address if "@" in filed.run else run.name
    measured = bets.Measurement(
        run=filed.run if filed.run in spellings(run.name, run.version) else named,
        metric=filed.metric,
        value=readings[-1][filed.metric],
        terms=terms,
        finished=readings[-1]["step"] == recipe["steps"],
    )
    called = bets.call(filed, measured)
    document = {"bet": filed.digest, "call": encode(called), "measured": encode(measured), "order": order}
    write_json(out.path / "call.json", document)
    kept = ("outcome", "predicted", "low", "high", "measured", "error", "differs", "reason")
    return Called(**{name: getattr(called, name) for name in kept})


def _terms(recipe: Mapping[str, Any], tokens: int, flops: float) -> "dict[str, Term]":
    """The comparability contract of a run, from its recipe."""
    schedule, mix = recipe["schedule"], recipe["data"]
    stores = " + ".join(f"{weight:g} {store}" for store, weight in sorted(mix["stores"].items()))
    return {
        "filed": "before the run",
        "model": f"{recipe['model']['type']} {fingerprint(recipe['model'])}",
        "tokens": tokens,
        "flops": float(flops),
        "flops_are": FLOPS_ARE,
        "holdout": str(recipe["validation"]),
        "holdout_tokens_per_domain": recipe["validation_tokens"],
        "mixture": f"{stores}, alpha {mix['alpha']:g}",
        "sequence_length": recipe["seq"],
        "batch": recipe["batch"],
        "optimizer": recipe["optimizer"]["type"],
        "schedule": f"warm-up {schedule['warmup']:g}, then {schedule['decay']:g} {schedule['shape']} to "
        f"{schedule['final']:g}; read at the end",
        "precision": recipe["dtype"],
    }


def _field(metric: str) -> str:
    """The rungs' field that holds a metric."""
    if metric != "holdout/macro_bpb":
        raise ConfigError(f"A ladder's rungs hold holdout/macro_bpb, not {metric}. Bet on that.")
    return "holdout_macro_bpb"


def _rung_recipe(ladder: Artifact) -> dict[str, Any]:
    folders = (ladder.path / "rungs").list()
    if not folders:
        raise ArtifactError(f"{ladder.address} has no rungs/, so there is nothing to fit. Build it again.")
    return _recipe(folders[-1])


def _recipe(folder: Path) -> dict[str, Any]:
    recipe = read_json(folder / "recipe.json")
    wanted = ("model", "data", "optimizer", "schedule", "seq", "batch", "steps", "validation", "dtype")
    missing = [name for name in (*wanted, "validation_tokens") if name not in recipe]
    if missing:
        raise ArtifactError(
            f"{folder}/recipe.json has no field {missing[0]!r}, so the terms of the run are unknown. "
            "Another version of lmlab wrote it; train the run again."
        )
    return recipe


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _started(out: Out, run: str) -> str | None:
    """When the run began, by the claims on its address; None if nobody has claimed it.

    A mutable version may hold claims of older recipes, so there the order is judged when the bet is called.
    """
    from lmlab.artifacts.claims import newest
    from lmlab.artifacts.identity import is_mutable, split_address

    name, version = split_address(run)
    version = version or out.version
    if is_mutable(version):
        return None
    attempts = newest(out.root / name / version)
    return f"{name}@{version}, attempt {attempts}" if attempts else None


def _order(bet: Artifact, run: Artifact) -> dict[str, float] | None:
    """When the bet was committed and when the run began, by their records and claims; None by hand.

    A run that was resumed began with the first claim of the recipe that was finished.
    """
    from lmlab.artifacts.claims import read_owner
    from lmlab.artifacts.records import load

    filed, ran = load(bet.path), load(run.path)
    if filed is None or ran is None:
        return None
    owners = [read_owner(run.path, number) for number in range(1, ran.attempt + 1)]
    began = min([ran.started, *(owner.at for owner in owners if owner and owner.config == ran.config)])
    return {"filed": filed.finished, "began": began}
