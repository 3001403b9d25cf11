"""Predictions that are filed before a run starts, and called after it ended.

A bet names the run, the metric, a value with an interval, the law behind it with its data, and the *terms*
under which a measurement counts (held-out set, sequence length, tokens…). Its file is canonical JSON with a
sha256, so that an edit shows. A run under other terms can't retire a bet: the call is "not comparable".
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lmlab.core.config import Json, canonical, decode, encode
from lmlab.core.errors import ConfigError, InputError
from lmlab.science.laws import Envelope
from lmlab.storage import Path

Term = str | int | float
Outcome = Literal["hit", "miss", "not comparable"]
FORMAT = 1
RELATIVE_TOLERANCE = 1e-3  # of float terms such as FLOPs, which two programs may round differently


class Tampered(InputError):
    """A bet's file is not what was filed."""


@dataclass(frozen=True)
class Bet:
    """What is claimed of a run that has not started; build it with `file`."""

    run: str
    """Name of the run that the bet is about."""
    metric: str
    """Key of the metric, lower is better."""
    value: float
    """Prediction."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    level: float
    """Probability that the interval claims."""
    flops: float
    """Training FLOPs at which the prediction was read off, counted as the law's points are."""
    law: Envelope
    """The law and the runs it was fitted on."""
    terms: Mapping[str, Term]
    """What must hold of a measurement for it to count."""
    at_most: float | None = None
    """One-sided target; None = the interval is the target."""

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ConfigError(
                f"The bet on {self.run} predicts {self.value} outside of its interval {self.low} to "
                f"{self.high}, so it can't be scored. Correct the interval."
            )
        if not self.terms:
            raise ConfigError(
                f"The bet on {self.run} names no terms, so any measurement would count. Give at least the "
                "held-out set and the number of tokens."
            )

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON."""
        return hashlib.sha256(canonical(encode(self)).encode()).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """What the finished run showed."""

    run: str
    metric: str
    value: float
    terms: Mapping[str, Term]
    finished: bool = True


@dataclass(frozen=True)
class Call:
    """How a bet ended."""

    outcome: Outcome
    predicted: float
    low: float
    high: float
    measured: float
    error: float
    """Measured minus predicted: negative = better than predicted."""
    inside: bool
    """Whether the measurement lies in the interval (the same as a hit, unless the target is one-sided)."""
    differs: tuple[str, ...]
    """The terms that differ; empty if comparable."""
    reason: str
    """One sentence."""


@dataclass(frozen=True)
class Score:
    """How a set of called bets did; what was not comparable counts nowhere but in its own field."""

    called: int
    hits: int
    not_comparable: int
    mean_signed_error: float | None
    coverage: float | None
    """Share of measurements inside their intervals, to be compared with the level; None without any."""

    @property
    def hit_rate(self) -> float | None:
        """Hits over called; None without any."""
        return self.hits / self.called if self.called else None


def file(
    run: str,
    *,
    metric: str,
    by: Envelope,
    flops: float,
    terms: Mapping[str, Term],
    started: str | None,
    level: float = 0.9,
    at_most: float | None = None,
) -> Bet:
    """A bet on `run` at `flops`. `started` says when the run began, and then no bet is filed; None = not yet.

    >>> from lmlab.science.laws import Envelope, Floor, Point
    >>> law = Envelope.fit([Point(str(c), c, 1 + 50 * c**-0.1) for c in (1e15, 4e15, 2e16)], floor=Floor(1.0))
    >>> bet = file("runs/a", metric="bpb", by=law, flops=1e17, terms={"seq": 512}, started=None)
    >>> round(bet.value, 4), len(bet.digest)
    (1.9976, 64)
    """
    if started is not None:
        raise ConfigError(
            f"{run} has already started ({started}), so a prediction of it would be worth nothing. File the "
            "bet before the run, or give the run a new version."
        )
    estimate = by.predict(flops, level=level)
    return Bet(
        run=run,
        metric=metric,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        level=level,
        flops=flops,
        law=by,
        terms=dict(terms),
        at_most=at_most,
    )


def write(path: Path, bet: Bet) -> None:
    """Write the file of a bet; refused if the path holds one already, since a bet is never edited."""
    if not path.create_bytes(_render(bet)):
        raise InputError(f"{path} holds a bet already, and bets are never edited. File a new one elsewhere.")


def read(path: Path) -> Bet:
    """The bet in a file; raises Tampered unless every byte is as it was filed."""
    content = path.read_bytes()
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise InputError(
                f"{path} has bet format {document['format']!r}; this lmlab reads {FORMAT}. Use the lmlab "
                "that wrote it."
            )
        bet: Bet = decode(Bet, document["bet"], "bet")
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise Tampered(
            f"{path} is not a bet as lmlab files them ({_first_line(error)}), so nothing can be called on "
            "it. Restore the file."
        ) from error
    if content != _render(bet):
        raise Tampered(
            f"{path} was changed after it was filed: its sha256 is {str(document.get('sha256'))[:12]}…, but "
            f"what it holds hashes to {bet.digest[:12]}…. Restore the file; a bet can't be amended."
        )
    return bet


def call(bet: Bet, measured: Measurement) -> Call:
    """Hit, miss or not comparable; only a finished run under the bet's own terms decides it."""
    differences = _differences(bet, measured)
    inside = bet.low <= measured.value <= bet.high
    outcome: Outcome
    if differences:
        outcome, reason = "not comparable", f"differs in {'; '.join(differences.values())}"
    else:
        is_hit = inside if bet.at_most is None else measured.value <= bet.at_most
        outcome = "hit" if is_hit else "miss"
        reason = _describe(bet, measured.value)
    return Call(
        outcome=outcome,
        predicted=bet.value,
        low=bet.low,
        high=bet.high,
        measured=measured.value,
        error=measured.value - bet.value,
        inside=inside,
        differs=tuple(differences),
        reason=reason,
    )


def score(calls: Sequence[Call]) -> Score:
    """Hit rate, mean signed error and coverage of the comparable calls.

    >>> score([]).hit_rate is None
    True
    """
    decided = [call for call in calls if call.outcome != "not comparable"]
    count = len(decided)
    return Score(
        called=count,
        hits=sum(call.outcome == "hit" for call in decided),
        not_comparable=len(calls) - count,
        mean_signed_error=math.fsum(call.error for call in decided) / count if count else None,
        coverage=sum(call.inside for call in decided) / count if count else None,
    )


def _differences(bet: Bet, measured: Measurement) -> dict[str, str]:
    """Term -> what differs. A term that the measurement does not state is a difference."""
    found: dict[str, str] = {}
    if measured.run != bet.run:
        found["run"] = f"run: filed on {bet.run}, measured {measured.run}"
    if measured.metric != bet.metric:
        found["metric"] = f"metric: filed {bet.metric}, measured {measured.metric}"
    if not measured.finished:
        found["finished"] = "the run has not finished"
    if not math.isfinite(measured.value):
        found["value"] = f"{bet.metric} is {measured.value}"
    for name, filed in bet.terms.items():
        there = measured.terms.get(name)
        if there is None or not _same(filed, there):
            found[name] = f"{name}: filed {filed}, measured {'not stated' if there is None else there}"
    return found


def _same(filed: Term, measured: Term) -> bool:
    if isinstance(filed, float) and isinstance(measured, int | float):
        return math.isclose(filed, measured, rel_tol=RELATIVE_TOLERANCE)
    return filed == measured


def _describe(bet: Bet, value: float) -> str:
    side = "inside" if bet.low <= value <= bet.high else "below" if value < bet.low else "above"
    text = f"{value:.4f} is {side} the {bet.level:.0%} interval {bet.low:.4f} to {bet.high:.4f}"
    if bet.at_most is not None:
        text = f"{value:.4f} against a target of at most {bet.at_most:.4f}; it {text[7:]}"
    return text


def _render(bet: Bet) -> bytes:
    document: Json = {"format": FORMAT, "bet": encode(bet), "sha256": bet.digest}
    return f"{canonical(document)}\n".encode()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
