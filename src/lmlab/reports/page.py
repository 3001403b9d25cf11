"""From facts to one HTML file: sentences and tables computed from the facts, and the template around them.

The file asks nothing of a network: style sheet, charts and the facts as JSON stand in it, a content security
policy forbids everything else, and it works without JavaScript.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmlab.artifacts.records import Record
from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes, format_count, format_seconds
from lmlab.reports import charts
from lmlab.reports.command import command
from lmlab.reports.excerpts import Excerpt
from lmlab.reports.facts import Facts, Scores, Stage
from lmlab.reports.palette import style_sheet

SIZE_LIMIT_BYTES = 1_500_000
REASONS_SHOWN = 4
ABSENT = "–"
# When a run was saved is no difference, and which rule moves which matrix follows from the optimizer.
HIDDEN_SETTINGS = ("checkpoint_every_s", "checkpoint_every_steps", "optimizer.groups")


@dataclass(frozen=True)
class Row:
    """A row of the table of scores: a domain or a mean, with the best column."""

    name: str
    detail: str
    values: dict[str, float]
    best: str


def render(facts: Facts) -> str:
    """The page. Raises InputError if it would be too large to open comfortably."""
    page = _template().render(
        facts=facts,
        headline=headline(facts),
        answer=answer(facts),
        rows=score_rows(facts.scores),
        stages=facts.corpus.stages,
        widest=max((stage.bytes_in for stage in facts.corpus.stages), default=1) or 1,
        rejected=_by_stage(facts),
        domains=sorted(facts.corpus.domains, key=lambda row: -row.train_bytes),
        equal_compute=equal_compute(facts),
        filed=filed_before(facts),
        reading=reading(facts),
        here=f"@{facts.address.partition('@')[2]}",
        settings=settings(facts),
        recipe=flat(facts.run.recipe),
        costs=sorted(facts.lineage, key=lambda node: -node.seconds),
        total_s=sum(node.seconds for node in facts.lineage),
        command=command(_record(facts, facts.run.address).provenance.argv),
        provenance=_record(facts, facts.run.address).provenance,
        figures=charts.figures(facts),
        style=Markup(style_sheet()),  # noqa: S704 - our own style sheet
        island=Markup(island(facts)),  # noqa: S704 - escaped there
    )
    size = len(page.encode())
    if size > SIZE_LIMIT_BYTES:
        raise InputError(
            f"The report {facts.address} would be {format_bytes(size)}, above the "
            f"{format_bytes(SIZE_LIMIT_BYTES)} that open at once everywhere. Report fewer domains or samples."
        )
    return page


def headline(facts: Facts) -> str:
    """One line for the terminal: the result, its yardstick, the bet."""
    scores = facts.scores
    rival = best_baseline(scores)
    called = facts.bet.call.outcome
    return (
        f"{scores.main} {scores.macro[scores.main]:.3f} bits per byte over {len(scores.domains)} domains "
        f"({rival} {scores.macro[rival]:.3f}); bet {called}: filed {facts.bet.bet['value']:.3f}, "
        f"measured {facts.bet.call.measured:.3f}"
    )


def best_baseline(scores: Scores) -> str:
    """The column with the lowest macro figure, the main run aside."""
    others = {name: value for name, value in scores.macro.items() if name != scores.main}
    return min(others, key=lambda name: others[name])


def answer(facts: Facts) -> list[str]:
    """The answer to the question, in sentences made of the scores and the call."""
    scores, call = facts.scores, facts.bet.call
    mine = scores.macro[scores.main]
    others = [column.name for column in scores.columns if column.name != scores.main]
    compared = [
        f"{comparison(mine, scores.macro[name])} than {name} ({scores.macro[name]:.3f})" for name in others
    ]
    first = (
        f"{verdict(scores)} It needs {mine:.3f} bits per byte (mean over {len(scores.domains)} domains): "
        f"{_listed(compared)}."
    )
    second = {
        "hit": f"The bet on it was a hit: {call.reason}.",
        "miss": f"The bet on it was a miss: {call.reason}.",
    }.get(call.outcome, f"The bet on it could not be called: {call.reason}.")
    return [first, second, *filter(None, [equal_compute(facts)])]


def verdict(scores: Scores) -> str:
    """Which of the other columns the main run beats."""
    mine = scores.macro[scores.main]
    others = [column.name for column in scores.columns if column.name != scores.main]
    beaten = [name for name in others if mine < scores.macro[name]]
    rest = [name for name in others if name not in beaten]
    if not rest:
        return f"{scores.main} predicts unseen text better than {_listed(others)}."
    if not beaten:
        return f"{scores.main} does not predict unseen text better than {_listed(others, 'or')}."
    return (
        f"{scores.main} predicts unseen text better than {_listed(beaten)}, but not better than "
        f"{_listed(rest, 'or')}."
    )


def comparison(mine: float, other: float) -> str:
    """How much less or more.

    >>> comparison(2.0, 2.5), comparison(2.5, 2.0), comparison(2.0, 2.0004)
    ('20% fewer', '25% more', 'as many')
    """
    share = mine / other - 1
    if abs(share) < 5e-4:
        return "as many"
    digits = 0 if abs(share) >= 0.0995 else 1
    return f"{abs(share):.{digits}%} {'fewer' if share < 0 else 'more'}"


def equal_compute(facts: Facts) -> str | None:
    """The baseline against the main model's own curve at the compute that the baseline got."""
    run, baseline = facts.run, facts.baseline
    flops = baseline.result["flops"]
    there = run.curves["holdout/macro_bpb"].at(flops)
    if there is None:
        return None
    share = flops / run.result["flops"]
    return (
        f"{baseline.name} was given {share:.0%} of the compute and reached "
        f"{baseline.result['holdout_macro_bpb']:.3f} on the text read during training; at that compute "
        f"{run.name}'s own curve stood at {there:.3f}, its learning rate not yet decayed."
    )


def filed_before(facts: Facts) -> str:
    """When the bet was committed and when the run was first claimed."""
    order = facts.bet.order
    if order is None:
        return "No record says when it was filed."
    gap = order["began"] - order["filed"]
    when = f"{format_seconds(abs(gap))} {'before' if gap >= 0 else 'after'} the run began"
    return f"It was filed {moment(order['filed'])}, {when}."


def reading(facts: Facts) -> str:
    """What the bet's metric is, beside the table of scores."""
    return (
        f"The bet is on {facts.bet.bet['metric']} as training reads it at its end: "
        f"{facts.run.recipe['validation_tokens']:,} tokens of each domain. The table of scores is over every "
        "held-out document, so its mean differs a little."
    )


def score_rows(scores: Scores) -> list[Row]:
    """Macro and micro first, then the domains from the easiest to the hardest for the main run."""
    totals = [
        Row("all domains (macro)", "mean over domains", scores.macro, _least(scores.macro)),
        Row("all text (micro)", "all bits over all bytes", scores.micro, _least(scores.micro)),
    ]
    ordered = sorted(scores.domains, key=lambda row: row.bpb[scores.main])
    return totals + [
        Row(d.domain, f"{d.documents} documents, {format_bytes(d.bytes)}", d.bpb, _least(d.bpb))
        for d in ordered
    ]


def settings(facts: Facts) -> list[tuple[str, str, str]]:
    """The settings in which the two runs differ: path, main, baseline."""
    ours, theirs = flat(facts.run.recipe), flat(facts.baseline.recipe)
    paths = [*ours, *(path for path in theirs if path not in ours)]
    rows = [(path, ours.get(path, ABSENT), theirs.get(path, ABSENT)) for path in paths]
    differing = [row for row in rows if row[1] != row[2] and row[0] not in HIDDEN_SETTINGS]
    return sorted(differing, key=lambda row: (ABSENT in row, row[1] == ABSENT))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config as dotted paths.

    >>> flat({"model": {"type": "Grug", "hidden": 64}, "steps": 3})
    {'model.type': 'Grug', 'model.hidden': '64', 'steps': '3'}
    """
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            plain = f"{value:.6g}" if isinstance(value, float) else value
            found[f"{prefix}{name}"] = plain if isinstance(plain, str) else json.dumps(plain)
    return found


def island(facts: Facts) -> str:
    """The facts as JSON that can stand inside a script element: no `<`, `>` or `&` is left in it."""
    text = msgspec.json.encode(facts).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def moment(seconds: float) -> str:
    """A record's time, in UTC.

    >>> moment(0.0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def reasons(stage: Stage) -> str:
    """The commonest reasons of a stage, with their counts."""
    ordered = sorted(stage.dropped.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{reason} {count:,}" for reason, count in ordered[:REASONS_SHOWN]]
    return " · ".join(
        [*shown, f"{len(ordered) - REASONS_SHOWN} more" if len(ordered) > REASONS_SHOWN else ""]
    ).strip(" ·")


def _by_stage(facts: Facts) -> list[tuple[str, list[Excerpt]]]:
    """Rejected excerpts in the order of the stages."""
    order = [stage.stage for stage in facts.corpus.stages]
    grouped: dict[str, list[Excerpt]] = {}
    for excerpt in facts.corpus.rejected:
        grouped.setdefault(excerpt.stage, []).append(excerpt)
    return sorted(grouped.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def _record(facts: Facts, address: str) -> Record:
    return next(node.record for node in facts.lineage if node.address == address)


def _least(values: Mapping[str, float]) -> str:
    return min(values, key=lambda name: values[name])


def _listed(parts: list[str], word: str = "and") -> str:
    return ", ".join(parts[:-1]) + f" {word} {parts[-1]}" if len(parts) > 1 else "".join(parts)


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("lmlab.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "bytes": format_bytes,
        "count": format_count,
        "seconds": format_seconds,
        "moment": moment,
        "reasons": reasons,
        "svg": Markup,
    }
    environment.filters.update(filters)
    return environment.get_template("experiment.html")
