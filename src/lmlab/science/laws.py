"""Scaling laws over finished runs: what loss does compute buy, and how sure is that?

One law so far, the envelope `L(C) = floor + amplitude * C**-exponent`, a line in log(L - floor) over log C.
A prediction carries two doubts, kept apart in `Estimate.parts`: scatter about the line (Student-t, with the
leverage of an extrapolation) and the floor, which no short ladder can measure (the hull over its range).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from lmlab.core.errors import ConfigError, InputError

FLOORS_IN_HULL = 9
EXPONENT_RANGE = (0.005, 2.0)  # of a free fit; an optimum at a border says that the floor is not identified


@dataclass(frozen=True)
class Point:
    """One finished run, as a law sees it."""

    run: str
    """Name of the run, so that errors and charts can say which."""
    flops: float
    """Training FLOPs; every point of a fit must count them by the same convention."""
    value: float
    """The metric, lower is better."""
    finished: bool = True
    """Whether the run reached its last step."""


class FitError(InputError):
    """The points can't support the law; `rows` are the offending ones."""

    def __init__(self, message: str, rows: Sequence[Point] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class TooFewPoints(FitError):
    """Fewer distinct budgets than the law has constants to find."""


class FloorAboveLoss(FitError):
    """A floor that a run has already gone below is no floor."""


class NotFinite(FitError):
    """A metric or a FLOP count that is no positive finite number."""


class Unfinished(FitError):
    """A run that has not ended: its learning rate has not decayed, so its loss is on another curve."""


class NotFalling(FitError):
    """More compute did not lower the loss, so there is nothing to extrapolate."""


class FloorUnidentified(FitError):
    """The points don't bend enough to say where they level off."""


@dataclass(frozen=True)
class Floor:
    """The loss that no compute gets below, and the range it may lie in."""

    value: float
    """Best guess, in the units of the metric."""
    low: float | None = None
    """Lower end of the range; None = exactly `value`."""
    high: float | None = None
    """Upper end of the range; None = exactly `value`."""

    def __post_init__(self) -> None:
        low, high = self.range
        if not (all(map(math.isfinite, (low, self.value, high))) and 0 <= low <= self.value <= high):
            raise ConfigError(
                f"Floor(value={self.value}, low={self.low}, high={self.high}) is not ordered 0 <= low <= "
                "value <= high, so it bounds nothing. Swap or correct the ends."
            )

    @property
    def range(self) -> tuple[float, float]:
        """Both ends."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return low, high

    @staticmethod
    def below(points: Sequence[Point]) -> "Floor":
        """The range used when nothing is known of the metric: 0.5 (0.3 … 0.7) of the best value so far.

        >>> Floor.below([Point("a", 1e15, 3.0), Point("b", 4e15, 2.0)])
        Floor(value=1.0, low=0.6, high=1.4)
        """
        _refuse_unusable(points)
        best = min(point.value for point in points)
        return Floor(*(round(share * best, 4) for share in (0.5, 0.3, 0.7)))


@dataclass(frozen=True)
class Scatter:
    """What is known of the residuals before a fit: `weight` observations with standard deviation `sigma`.

    Three points leave one degree of freedom: Student's t is then 6.3 at 90 %, and the sample's own residual
    is a coin toss. So it is pooled with this prior: the variance is (weight * sigma² + sum of squares) /
    (weight + n - 2), the degrees of freedom weight + n - 2.

    The defaults, together with `Floor.below`, were chosen by hand from 72 settings on the very runs they are
    judged by here, so this is no held-out figure: 385 three-rung ladders (Gadre et al. 2024, 7 to 280 times
    the top rung), which share 78 runs and have only 32 targets. 90 % of them fell into the 90 % interval, by
    training set C4 74 %, RedPajama 98 %, RefinedWeb 96 %; half of the intervals are wide at most ±6.7 %, nine
    in ten ±15 %. Settings chosen by a rule without C4 covered 73 % of it: on new text, expect a 90 % interval
    to be wrong more often than one time in ten. The ladders' own t with 1 degree of freedom covers 86 %, at
    ±34 % for nine in ten; this prior with the floor fixed 58 %. Nothing near the size of the quick start
    (1e13 FLOPs) was among them.
    """

    sigma: float = 0.02
    """Relative standard deviation of (loss - floor) about the line."""
    weight: float = 3.0
    """How many observations of the residual the prior counts as."""

    def __post_init__(self) -> None:
        if not (0 < self.sigma < 1 and 0 < self.weight < 1000):
            raise ConfigError(
                f"Scatter(sigma={self.sigma}, weight={self.weight}) must have 0 < sigma < 1 and 0 < weight < "
                "1000: sigma is a share of the reducible loss. Correct the numbers, or use no prior."
            )


@dataclass(frozen=True)
class Estimate:
    """A predicted value with its interval."""

    value: float
    low: float
    high: float
    level: float
    """Probability that the interval claims, e.g. 0.9."""
    parts: dict[str, float]
    """Where the width comes from: half-widths `lack_of_fit` and `floor` in units of the metric; behind them
    `sigma`, `degrees_of_freedom`, `leverage` and `extrapolation` (FLOPs over those of the largest point)."""


@dataclass(frozen=True)
class Envelope:
    """`L(C) = floor + amplitude * C**-exponent`, fitted; make one with `fit` or `fit_free`."""

    floor: Floor
    amplitude: float
    exponent: float
    points: tuple[Point, ...]
    scatter: Scatter | None = None
    """Prior of the residuals; None = Student's t with n - 2 degrees of freedom."""
    is_free: bool = False
    """Whether the floor was fitted too."""

    @staticmethod
    def fit(points: Sequence[Point], *, floor: Floor, scatter: Scatter | None = None) -> "Envelope":
        """The law with its floor pinned: least squares in logarithms. Raises FitError with the rows.

        >>> budgets = (1e15, 4e15, 16e15)
        >>> law = Envelope.fit([Point(f"{c:g}", c, 1 + 50 * c**-0.1) for c in budgets], floor=Floor(1.0))
        >>> round(law.amplitude, 6), round(law.exponent, 6), round(law.predict(1e17).value, 4)
        (50.0, 0.1, 1.9976)
        """
        _refuse_unusable(points)
        _refuse_too_few(points, 3)
        _refuse_floor(points, floor)
        line = _fit_line(points, floor.value)
        if line.slope >= 0:
            raise NotFalling(
                f"The metric does not fall with compute (exponent {-line.slope:.3f} over {_rows(points)}), "
                "so there is no law to extrapolate. Check that the runs differ in scale only.",
                points,
            )
        return Envelope(floor, math.exp(line.intercept), -line.slope, tuple(points), scatter)

    @staticmethod
    def fit_free(points: Sequence[Point]) -> "Envelope":
        """The law with the floor fitted: a search over the exponent, each step a line with floor >= 0.

        Needs four points that bend. Raises FloorUnidentified where a border of the search is as good.
        """
        _refuse_unusable(points)
        _refuse_too_few(points, 4)
        exponent = _golden_section(lambda a: _free_residual(points, a)[0], *map(math.log, EXPONENT_RANGE))
        _, floor, amplitude = _free_residual(points, exponent)
        at_border = any(abs(math.log(border) - exponent) < 0.01 for border in EXPONENT_RANGE)
        if at_border or floor <= 0 or amplitude <= 0:
            raise FloorUnidentified(
                f"A free floor ends at {floor:.3f} with exponent {math.exp(exponent):.3f}, the border of the "
                f"search: {_rows(points)} don't say where they level off. Pin the floor, with a range.",
                points,
            )
        return Envelope(Floor(floor), amplitude, math.exp(exponent), tuple(points), is_free=True)

    def at(self, flops: float) -> float:
        """The law's value at a budget."""
        return self.floor.value + self.amplitude * flops**-self.exponent

    def predict(self, flops: float, *, level: float = 0.9) -> Estimate:
        """Value and interval for one new run of `flops` training FLOPs."""
        if not 0 < flops < math.inf:
            raise ConfigError(f"Predicting at {flops} FLOPs has no meaning. Give a positive finite budget.")
        if not 0 < level < 1:
            raise ConfigError(f"level={level} is not a probability. Choose one between 0 and 1, such as 0.9.")
        return self._predict_free(flops, level) if self.is_free else self._predict_pinned(flops, level)

    def _predict_pinned(self, flops: float, level: float) -> Estimate:
        low, high = self.floor.range
        steps = FLOORS_IN_HULL if high > low else 1
        floors = [low + (high - low) * i / max(1, steps - 1) for i in range(steps)]
        freedom = self._freedom()
        quantile = _student_quantile(level, freedom)
        bands = [self._band(flops, floor, quantile) for floor in (self.floor.value, *floors)]
        pinned = bands[0]
        hull_low, hull_high = min(b.low for b in bands), max(b.high for b in bands)
        parts = {
            "lack_of_fit": (pinned.high - pinned.low) / 2,
            "floor": ((hull_high - hull_low) - (pinned.high - pinned.low)) / 2,
            "sigma": pinned.sigma,
            "degrees_of_freedom": freedom,
            "leverage": pinned.leverage,
            "extrapolation": flops / max(point.flops for point in self.points),
        }
        return Estimate(self.at(flops), hull_low, hull_high, level, parts)

    def _band(self, flops: float, floor: float, quantile: float) -> "_Band":
        """The interval if the floor were exactly `floor`."""
        line = _fit_line(self.points, floor)
        sigma = math.sqrt(self._pooled(line.squares) / self._freedom())
        leverage = line.leverage(math.log(flops))
        center = line.intercept + line.slope * math.log(flops)
        half = quantile * sigma * math.sqrt(1 + leverage)
        return _Band(floor + math.exp(center - half), floor + math.exp(center + half), sigma, leverage)

    def _pooled(self, squares: float) -> float:
        return squares + (self.scatter.weight * self.scatter.sigma**2 if self.scatter else 0.0)

    def _freedom(self) -> float:
        return len(self.points) - 2 + (self.scatter.weight if self.scatter else 0.0)

    def _predict_free(self, flops: float, level: float) -> Estimate:
        """Linearised about the optimum: t(n - 3), with the floor's doubt inside the leverage."""
        import numpy as np

        gradients = np.array([_gradient(self, point.flops) for point in self.points])
        residuals = [point.value - self.at(point.flops) for point in self.points]
        freedom = len(self.points) - 3
        sigma = math.sqrt(math.fsum(r * r for r in residuals) / freedom)
        there = np.array(_gradient(self, flops))
        leverage = float(there @ np.linalg.pinv(gradients.T @ gradients) @ there)
        half = _student_quantile(level, freedom) * sigma * math.sqrt(1 + leverage)
        parts = {
            "lack_of_fit": half,
            "floor": 0.0,
            "sigma": sigma,
            "degrees_of_freedom": float(freedom),
            "leverage": leverage,
            "extrapolation": flops / max(point.flops for point in self.points),
        }
        return Estimate(self.at(flops), self.at(flops) - half, self.at(flops) + half, level, parts)


@dataclass(frozen=True)
class _Line:
    intercept: float
    slope: float
    squares: float
    mean: float
    spread: float
    count: int

    def leverage(self, x: float) -> float:
        return 1 / self.count + (x - self.mean) ** 2 / self.spread


@dataclass(frozen=True)
class _Band:
    low: float
    high: float
    sigma: float
    leverage: float


def _fit_line(points: Sequence[Point], floor: float) -> _Line:
    """log(value - floor) = intercept + slope * log(flops), least squares about the mean."""
    x = [math.log(point.flops) for point in points]
    y = [math.log(point.value - floor) for point in points]
    mean_x, mean_y = fmean(x), fmean(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    slope = math.fsum((a - mean_x) * b for a, b in zip(x, y, strict=True)) / spread
    squares = math.fsum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return _Line(mean_y - slope * mean_x, slope, squares, mean_x, spread, len(x))


def _free_residual(points: Sequence[Point], log_exponent: float) -> tuple[float, float, float]:
    """(sum of squares, floor, amplitude) of the best curve of that exponent, neither of them negative."""
    exponent = math.exp(log_exponent)
    x = [point.flops**-exponent for point in points]
    y = [point.value for point in points]
    mean_x, mean_y = fmean(x), fmean(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    amplitude = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    floor = mean_y - amplitude * mean_x
    if floor < 0:
        floor = 0.0
        amplitude = math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.fsum(a * a for a in x)
    if amplitude < 0:
        floor, amplitude = mean_y, 0.0
    squares = math.fsum((b - floor - amplitude * a) ** 2 for a, b in zip(x, y, strict=True))
    return squares, floor, amplitude


def _golden_section(objective: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a function with one valley, to 1e-10: 60 evaluations, no derivative, no start value."""
    ratio = (math.sqrt(5) - 1) / 2
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [objective(x) for x in inner]
    while high - low > 1e-10:
        if values[0] < values[1]:
            high, inner = inner[1], [inner[1] - ratio * (inner[1] - low), inner[0]]
            values = [objective(inner[0]), values[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + ratio * (high - inner[0])]
            values = [values[1], objective(inner[1])]
    return (low + high) / 2


def _gradient(law: Envelope, flops: float) -> tuple[float, float, float]:
    """By floor, log amplitude and exponent; logs of FLOPs taken from the mean, which keeps columns apart."""
    reducible = law.amplitude * flops**-law.exponent
    center = fmean(math.log(point.flops) for point in law.points)
    return 1.0, reducible, -reducible * (math.log(flops) - center)


def _student_quantile(level: float, freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _refuse_unusable(points: Sequence[Point]) -> None:
    broken = [p for p in points if not (0 < p.flops < math.inf and 0 < p.value < math.inf)]
    if broken:
        raise NotFinite(
            f"{_rows(broken)}: FLOPs and metric must be positive finite numbers to fit a law in logarithms. "
            "A diverged run has no place on it; leave it out and say so.",
            broken,
        )
    running = [point for point in points if not point.finished]
    if running:
        raise Unfinished(
            f"{_rows(running)}: not finished, and a loss before the learning rate has decayed lies above the "
            "law. Wait for the run, or leave it out.",
            running,
        )


def _refuse_too_few(points: Sequence[Point], needed: int) -> None:
    budgets = {point.flops for point in points}
    if len(budgets) < needed:
        raise TooFewPoints(
            f"{len(budgets)} distinct budgets ({_rows(points) or 'no runs'}) can't fix a law that needs "
            f"{needed}: nothing would be left to judge its errors by. Train {needed - len(budgets)} more.",
            points,
        )


def _refuse_floor(points: Sequence[Point], floor: Floor) -> None:
    highest = floor.range[1]
    below = [point for point in points if point.value <= highest]
    if below:
        raise FloorAboveLoss(
            f"The floor reaches up to {highest}, but {_rows(below)} went below it, so it is no floor. "
            f"Lower its upper end below {min(point.value for point in points):.4g}.",
            below,
        )


def _rows(points: Sequence[Point]) -> str:
    shown = [f"{point.run} ({point.value:.4g} at {point.flops:.3g} FLOPs)" for point in points[:4]]
    return ", ".join(shown) + (f" and {len(points) - 4} more" if len(points) > 4 else "")
