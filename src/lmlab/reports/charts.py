"""The charts of a report as inline SVG: drawn by Altair and vl-convert, coloured by the page's style sheet.

Each chart is drawn wide and narrow, in the light colours of the palette, and the page shows one of them.
"""

import html
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from lmlab.core.config import decode
from lmlab.reports.facts import Curve, Facts
from lmlab.reports.palette import COLOUR
from lmlab.science.bets import Bet

SERIES = ("main", "second", "third", "fourth", "fifth")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
WIDE, NARROW = 500, 262  # of the plot itself; axis and labels come on top
BAND_POINTS = 48
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
POWER = "replace(format(datum.value, '.0e'), '+', '')"

Rows = list[dict[str, Any]]
Draw = Callable[[int], alt.TopLevelMixin]


@dataclass(frozen=True)
class Figure:
    """One chart with its words."""

    name: str
    title: str
    caption: str
    """What it shows; also what a screen reader says."""
    wide: str
    narrow: str


def figures(facts: Facts) -> dict[str, Figure]:
    """All charts of a report, by name; the router's only where there is a router."""
    made = [domains(facts), scaling(facts), heldout(facts), loss(facts)]
    if "router/max_over_mean_load" in facts.run.curves:
        made.append(router(facts))
    return {figure.name: figure for figure in made}


def domains(facts: Facts) -> Figure:
    """Bits per byte of every column on every domain."""
    scores = facts.scores
    names = [column.name for column in scores.columns]
    order = [row.domain for row in sorted(scores.domains, key=lambda row: row.bpb[scores.main])]
    rows = [
        {"domain": d.domain, "column": name, "bpb": d.bpb[name]}
        for d in scores.domains
        for name in reversed(names)
    ]
    spans = [
        {"domain": d.domain, "low": min(d.bpb.values()), "high": max(d.bpb.values())} for d in scores.domains
    ]
    y = alt.Y(
        "domain:N",
        sort=order,
        title=None,
        axis=alt.Axis(grid=False, domain=False, ticks=False, minExtent=112),
    )

    def draw(width: int) -> alt.TopLevelMixin:
        span = (
            alt.Chart(alt.Data(values=spans))
            .mark_rule(color=COLOUR["grid"], strokeWidth=2)
            .encode(
                y=y,
                x=alt.X(
                    "low:Q", title="bits per byte", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)
                ),
                x2="high:Q",
            )
        )
        points = (
            alt.Chart(alt.Data(values=rows))
            .mark_point(filled=True, size=62, opacity=1)
            .encode(y=y, x="bpb:Q", color=_colour(names), shape=_shape(names))
        )
        return (span + points).properties(width=width - 40, height=22 * len(order))

    caption = (
        f"Bits per byte of held-out text, fewer is better; {len(order)} domains, sorted by {scores.main}. "
        f"Mean over domains: {', '.join(f'{name} {scores.macro[name]:.3f}' for name in names)}."
    )
    return _figure("domains", "Held-out text, by domain", caption, draw)


def scaling(facts: Facts) -> Figure:
    """The ladder, the law with its interval, and where the run came out."""
    bet: Bet = decode(Bet, facts.bet.bet, "bet")
    measured = facts.bet.call.measured
    band = _band(bet)
    kinds = ["ladder", "filed", "measured"]
    points: Rows = [{"x": p.flops, "value": p.value, "column": "ladder", "size": 70} for p in bet.law.points]
    points += [
        {"x": bet.flops, "value": bet.value, "column": "filed", "size": 200},
        {"x": bet.flops, "value": measured, "column": "measured", "size": 62},
    ]
    interval = [{"x": bet.flops, "low": bet.low, "high": bet.high}]
    x = _log_x("x:Q", "training FLOPs (log scale)", band[0]["x"], band[-1]["x"])
    y = alt.Y("value:Q", title="bits per byte", scale=alt.Scale(zero=False))
    low = alt.Y("low:Q", title="bits per byte")

    def draw(width: int) -> alt.TopLevelMixin:
        base = alt.Chart(alt.Data(values=band)).encode(x=x)
        return alt.layer(
            base.mark_area(color=COLOUR["band"], opacity=1).encode(y=low, y2="high:Q"),
            base.mark_line(color=COLOUR["main"], strokeWidth=1.5, strokeDash=[5, 3]).encode(y=y),
            alt.Chart(alt.Data(values=interval))
            .mark_rule(color=COLOUR["main"], strokeWidth=2)
            .encode(x=x, y=low, y2="high:Q"),
            alt.Chart(alt.Data(values=points))
            .mark_point(filled=True, opacity=1)
            .encode(
                x=x,
                y=y,
                color=_colour(kinds, ("muted", "main", "second")),
                shape=_shape(kinds, ("circle", "diamond", "square")),
                size=alt.Size("size:Q", scale=None, legend=None),
            ),
        ).properties(width=width, height=250)

    caption = (
        f"The law {_law(bet)} over {len(bet.law.points)} ladder models, with its {bet.level:.0%} interval. "
        f"Filed {bet.value:.3f} ({bet.low:.3f} to {bet.high:.3f}); measured {measured:.3f}."
    )
    return _figure("scaling", "The bet on the scaling chart", caption, draw)


def _band(bet: Bet) -> Rows:
    """The law and its interval from below the ladder to beyond the run, evenly in log FLOPs."""
    lowest = min(point.flops for point in bet.law.points) / 1.6
    step = math.log(bet.flops * 2.2 / lowest) / (BAND_POINTS - 1)
    budgets = [lowest * math.exp(step * i) for i in range(BAND_POINTS)]
    estimates = [bet.law.predict(flops, level=bet.level) for flops in budgets]
    return [
        {"x": flops, "value": e.value, "low": e.low, "high": e.high}
        for flops, e in zip(budgets, estimates, strict=True)
    ]


def heldout(facts: Facts) -> Figure:
    """Held-out bits per byte over compute, both models."""
    runs = {run.name: run.curves["holdout/macro_bpb"] for run in (facts.run, facts.baseline)}
    rows = _series(runs, "flops")
    flops = [row["x"] for row in rows]
    x = _log_x("x:Q", "training FLOPs (log scale)", min(flops) / 1.1, max(flops) * 1.1)
    caption = (
        "Held-out bits per byte, mean over domains, read during training, over the compute spent by then."
    )
    lines = _lines(rows, list(runs), x, "bits per byte", with_points=True)
    return _figure("heldout", "Held-out text, over compute", caption, lines)


def loss(facts: Facts) -> Figure:
    """Training loss over tokens, both models."""
    runs = {run.name: run.curves["train/loss"] for run in (facts.run, facts.baseline)}
    ends = ", ".join(f"{run.name} {run.result['loss']:.3f}" for run in (facts.run, facts.baseline))
    caption = (
        f"Loss on the training text, each batch before it is learnt from. Mean of the last tenth: {ends}."
    )
    lines = _lines(_series(runs, "tokens"), list(runs), _TOKENS, "nats per token")
    return _figure("loss", "Training loss", caption, lines)


def router(facts: Facts) -> Figure:
    """How evenly the router uses the experts."""
    load, overflow = (facts.run.curves.get(f"router/{name}") for name in ("max_over_mean_load", "overflow"))
    assert load is not None
    caption = "Load of the busiest expert over the mean, averaged over layers; 1 is even. "
    caption += f"It ends at {load.value[-1]:.2f}"
    if overflow:
        caption += f", and {overflow.value[-1]:.2%} of the assignments found their expert full"
    lines = _lines(_series({facts.run.name: load}, "tokens"), [facts.run.name], _TOKENS, "busiest / mean")
    return _figure("router", "Balance of the experts", f"{caption}.", lines)


def _lines(rows: Rows, names: list[str], x: alt.X, title: str, *, with_points: bool = False) -> Draw:
    """A line for each name, with a mark at each reading if those are few."""

    def draw(width: int) -> alt.TopLevelMixin:
        y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
        chart = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=_colour(names))
        drawn = chart.mark_line(strokeWidth=2 if with_points else 1.3)
        if with_points:
            drawn += chart.mark_point(filled=True, size=44, opacity=1).encode(shape=_shape(names))
        return drawn.properties(width=width, height=230)

    return draw


def _series(runs: dict[str, Curve], axis: str) -> Rows:
    return [
        {"x": x, "value": value, "column": name}
        for name, curve in runs.items()
        for x, value in zip(getattr(curve, axis), curve.value, strict=True)
        if x > 0
    ]


def _law(bet: Bet) -> str:
    law = bet.law
    return f"{law.floor.value:.2f} + {law.amplitude:.3g} C^-{law.exponent:.3f}"


def _colour(names: list[str], colours: Iterable[str] = SERIES) -> alt.Color:
    return alt.Color("column:N", sort=names, scale=_scale(names, colours), title=None)


def _shape(names: list[str], shapes: tuple[str, ...] = SHAPES) -> alt.Shape:
    chosen = [shapes[i % len(shapes)] for i in range(len(names))]
    return alt.Shape("column:N", sort=names, scale=alt.Scale(domain=names, range=chosen), title=None)


def _scale(names: list[str], colours: Iterable[str]) -> alt.Scale:
    chosen = [COLOUR[name] for name in colours]
    return alt.Scale(domain=names, range=[chosen[i % len(chosen)] for i in range(len(names))])


def _log_x(field: str, title: str, low: float, high: float) -> alt.X:
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(labelExpr=POWER, values=log_ticks(low, high))
    return alt.X(field, title=title, scale=scale, axis=axis)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: 1, 2 and 5 of each power of ten, or only powers if those are many.

    >>> log_ticks(8e11, 2.5e13)
    [1000000000000.0, 2000000000000.0, 5000000000000.0, 10000000000000.0, 20000000000000.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leading = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in leading]
    return [tick for tick in ticks if low <= tick <= high]


_TOKENS = alt.X("x:Q", title="tokens read", axis=alt.Axis(format="~s", tickCount=5))


def _figure(name: str, title: str, caption: str, draw: Draw) -> Figure:
    wide, narrow = (_svg(draw(width), f"{name}-{width}", f"{title}. {caption}") for width in (WIDE, NARROW))
    return Figure(name, title, caption, wide, narrow)


def _svg(chart: alt.TopLevelMixin, prefix: str, label: str) -> str:
    """The chart as one SVG element; ids are prefixed, since all charts stand in one document."""
    spec = {**chart.to_dict(validate=False), "config": _CONFIG, "background": None}
    drawn = vl_convert.vegalite_to_svg(spec)
    drawn = re.sub(r'\bid="', f'id="{prefix}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{prefix}-", drawn)
    size = re.search(r'<svg[^>]*? viewBox="0 0 ([\d.]+) [\d.]+"[^>]*>', drawn)
    assert size is not None
    opening = re.sub(r'\s(width|height|class|version|xmlns:xlink)="[^"]*"', "", size.group(0))[:-1]
    style = f"max-width:{float(size.group(1)):.0f}px"
    tag = f'{opening} role="img" aria-label="{html.escape(label)}" style="{style}">'
    return tag + drawn[size.end() :]


_LINES = dict.fromkeys(("gridColor", "domainColor", "tickColor"), COLOUR["grid"])
_WORDS = {
    "labelColor": COLOUR["muted"],
    "titleColor": COLOUR["muted"],
    "labelFontSize": 11.5,
    "titleFontSize": 11.5,
}
_LEGEND = {
    "orient": "top",
    "columns": 3,
    "columnPadding": 14,
    "offset": 8,
    "symbolSize": 80,
    "labelFontSize": 12,
}
_CONFIG: dict[str, Any] = {
    "aria": False,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {**_LINES, **_WORDS, "titleFontWeight": "normal", "titlePadding": 8, "labelLimit": 140},
    "legend": {**_LEGEND, "labelColor": COLOUR["ink"], "symbolStrokeWidth": 2},
}
