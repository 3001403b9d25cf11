"""The facts of an experiment's report: their shapes, each read and checked from an artifact's own files.

A file that is missing, or that lacks a field, is an error naming both: a hole in a report would be believed.
What is read here is all that the page may show, and it is embedded in the page as JSON.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import ArtifactError
from lmlab.reports.excerpts import Excerpt, kept_excerpts, rejected_excerpts, shorten
from lmlab.reports.lineage import Node, lineage
from lmlab.science import bets
from lmlab.storage import Path
from lmlab.telemetry.tracker import read_metrics

T = TypeVar("T")
CURVE_POINTS = 400  # more are averaged in bins: a chart is about as many pixels wide
COMPLETION_CHARACTERS = 1200
RUN_FIELDS = ("steps", "tokens", "params", "active_params", "flops", "loss", "holdout_macro_bpb")
RUN_FIELDS += ("train_seconds", "compile_seconds", "tokens_per_second")


class Column(msgspec.Struct, frozen=True):
    """One model or baseline of the evaluation."""

    name: str
    kind: str
    how: str


class DomainScore(msgspec.Struct, frozen=True):
    """Bits per byte of every column on one domain."""

    domain: str
    documents: int
    bytes: int
    tokens: int
    bpb: dict[str, float]


class Scores(msgspec.Struct, frozen=True):
    """`scores.json` of an evaluation."""

    main: str
    macro: dict[str, float]
    micro: dict[str, float]
    domains: list[DomainScore]
    columns: list[Column]


class Stage(msgspec.Struct, frozen=True):
    """One stage of curation."""

    stage: str
    documents_in: int
    documents_out: int
    bytes_in: int
    bytes_out: int
    dropped: dict[str, int]


class Domain(msgspec.Struct, frozen=True):
    """What a domain ended with."""

    domain: str
    train_documents: int
    train_bytes: int
    holdout_documents: int
    holdout_bytes: int


class Stages(msgspec.Struct, frozen=True):
    """`stages.json` of a corpus."""

    stages: list[Stage]
    domains: list[Domain]


class Sample(msgspec.Struct, frozen=True):
    """One completion obtained over HTTP."""

    prompt: str
    completion: str
    tokens: int
    endpoint: str


class Archive(msgspec.Struct, frozen=True):
    """One archive that text was taken from."""

    package: str
    version: str
    registry: str
    license: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """`manifest.json` of fetched archives."""

    archives: list[Archive]


class Curve(msgspec.Struct, frozen=True):
    """A metric over training."""

    tokens: list[float]
    flops: list[float]
    value: list[float]

    def at(self, flops: float) -> float | None:
        """Linear between readings; None outside of them."""
        for (x0, y0), (x1, y1) in pairwise(zip(self.flops, self.value, strict=True)):
            if x0 <= flops <= x1:
                return y0 + (y1 - y0) * (flops - x0) / (x1 - x0 or 1)
        return None


class RunFacts(msgspec.Struct, frozen=True):
    """One training run: its result, its recipe and its curves."""

    name: str
    address: str
    result: dict[str, Any]
    """As recorded: steps, tokens, FLOPs, seconds…"""
    recipe: dict[str, Any]
    curves: dict[str, Curve]


class Call(msgspec.Struct, frozen=True):
    """How the bet ended."""

    outcome: str
    measured: float
    reason: str


class CallFile(msgspec.Struct, frozen=True):
    """`call.json` of a called bet."""

    bet: str
    call: Call
    order: dict[str, float] | None
    """When it was filed and when the run began, seconds since 1970; None if the records don't say."""


class BetFacts(msgspec.Struct, frozen=True):
    """The bet as filed, and its call."""

    address: str
    digest: str
    bet: dict[str, Any]
    call: Call
    order: dict[str, float] | None


class CorpusFacts(msgspec.Struct, frozen=True):
    """What curation kept and dropped."""

    address: str
    stages: list[Stage]
    domains: list[Domain]
    kept: list[Excerpt]
    rejected: list[Excerpt]


class Facts(msgspec.Struct, frozen=True):
    """Everything on the page."""

    address: str
    title: str
    question: str
    scores: Scores
    run: RunFacts
    baseline: RunFacts
    bet: BetFacts
    corpus: CorpusFacts
    rungs: list[dict[str, Any]]
    exported: dict[str, Any]
    served: dict[str, Any]
    samples: list[Sample]
    archives: list[Archive]
    lineage: list[Node]


@dataclass(frozen=True)
class Sources:
    """The artifacts that a report is made of."""

    run: Artifact
    baseline: Artifact
    evaluation: Artifact
    bet: Artifact
    called: Artifact
    corpus: Artifact
    ladder: Artifact
    exported: Artifact
    samples: Artifact


def gather(sources: Sources, out: Out, *, title: str, question: str) -> Facts:
    """Read every fact of the report that will lie at `out`."""
    samples = read(sources.samples.path / "samples.json", list[Sample])
    root = out.root
    nodes = lineage(vars(sources).values(), root, root / out.name / out.version)
    return Facts(
        address=out.address,
        title=title,
        question=question,
        scores=_scores(sources.evaluation, sources.run, sources.baseline),
        run=run_facts(sources.run),
        baseline=run_facts(sources.baseline),
        bet=_bet(sources.bet, sources.called),
        corpus=_corpus(sources.corpus, [root / place / "rejected" for place in _made_by("extract", nodes)]),
        rungs=_result(sources.ladder, "rungs")["rungs"],
        exported=_result(sources.exported, "size_bytes"),
        served=_result(sources.samples, "requests", "tokens", "tokens_per_second"),
        samples=[_shortened(sample) for sample in samples],
        archives=_archives(nodes, root),
        lineage=nodes,
    )


def read(file: Path, kind: type[T]) -> T:
    """The JSON in a file as `kind`; ArtifactError naming the file and the field."""
    content = file.read_if_present()
    if content is None:
        raise ArtifactError(f"{file} is missing, and the report shows what stands in it. Build it again.")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ArtifactError(
            f"{file} can't be reported: {error}. Build it again with this version of lmlab."
        ) from error


def run_facts(run: Artifact) -> RunFacts:
    """A training run's result, recipe and curves."""
    rows = read_metrics(_present(run.path / "metrics.jsonl"))
    names = {name for row in rows for name in row}
    wanted = sorted(
        n for n in names if n.startswith(("train/loss", "holdout/", "router/", "throughput/")) or n == "lr"
    )
    curves = {name: _curve(rows, name, run) for name in wanted}
    for name in ("train/loss", "holdout/macro_bpb"):
        if name not in curves:
            raise ArtifactError(
                f"{run.path}/metrics.jsonl has no reading of {name}, which the report draws. Train the run "
                "with held-out text."
            )
    return RunFacts(
        name=run.name.rsplit("/", 1)[-1],
        address=run.address,
        result=_result(run, *RUN_FIELDS),
        recipe=read(run.path / "recipe.json", dict[str, Any]),
        curves=curves,
    )


def _curve(rows: list[dict[str, float]], name: str, run: Artifact) -> Curve:
    readings = [row for row in rows if name in row]
    missing = [place for place in ("tokens", "flops") if any(place not in row for row in readings)]
    if missing:
        raise ArtifactError(
            f"{run.path}/metrics.jsonl has readings of {name} without {missing[0]}, so they have no place on "
            "a chart. Train the run again."
        )
    columns = [[row[key] for row in readings] for key in ("tokens", "flops", name)]
    return Curve(*(_binned(column) for column in columns))


def _binned(values: list[float]) -> list[float]:
    size = -(-len(values) // CURVE_POINTS)
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups]


def _scores(evaluation: Artifact, run: Artifact, baseline: Artifact) -> Scores:
    file = evaluation.path / "scores.json"
    scores = read(file, Scores)
    names = [column.name for column in scores.columns]
    wanted = {artifact.name.rsplit("/", 1)[-1] for artifact in (run, baseline)}
    places = {"macro": scores.macro, "micro": scores.micro}
    places |= {f"domains[{i}].bpb": row.bpb for i, row in enumerate(scores.domains)}
    for place, values in places.items():
        absent = [name for name in (*names, *sorted(wanted)) if name not in values]
        if absent:
            raise ArtifactError(
                f"{file} has no {absent[0]!r} in {place}, so the table would have a hole. Evaluate again."
            )
    if not scores.domains:
        raise ArtifactError(f"{file} has no domains, so nothing was evaluated. Evaluate again.")
    return scores


def _bet(bet: Artifact, called: Artifact) -> BetFacts:
    filed = bets.read(_present(bet.path / "bet.json"))
    document = read(bet.path / "bet.json", dict[str, Any])
    call = read(called.path / "call.json", CallFile)
    if call.bet != filed.digest:
        raise ArtifactError(
            f"{called.path}/call.json calls the bet {call.bet[:12]}…, but {bet.address} is "
            f"{filed.digest[:12]}…. Call the bet that the report shows."
        )
    return BetFacts(bet.address, filed.digest, document["bet"], call.call, call.order)


def _corpus(corpus: Artifact, earlier: list[Path]) -> CorpusFacts:
    """What `corpus` kept and dropped; `earlier` are the folders of what its documents' step rejected."""
    stages = read(corpus.path / "stages.json", Stages)
    return CorpusFacts(
        address=corpus.address,
        stages=stages.stages,
        domains=stages.domains,
        kept=kept_excerpts(corpus.path / "train"),
        rejected=[
            row for folder in (*earlier, corpus.path / "rejected") for row in rejected_excerpts(folder)
        ],
    )


def _archives(nodes: list[Node], root: Path) -> list[Archive]:
    """What the fetched artifacts upstream hold; none if the text came from elsewhere."""
    manifests = [root / place / "manifest.json" for place in _made_by("fetch", nodes)]
    return [archive for file in manifests for archive in read(file, Manifest).archives]


def _made_by(step: str, nodes: list[Node]) -> list[str]:
    return [node.address.replace("@", "/") for node in nodes if node.record.step == step]


def _result(artifact: Artifact, *needed: str) -> dict[str, Any]:
    """The recorded fields of an artifact that has at least these."""
    result = artifact.result
    missing = [name for name in needed if result.get(name) is None]
    if missing:
        raise ArtifactError(
            f"The record of {artifact.address} has no {missing[0]!r}, which the report shows. Check that the "
            "right artifact was given."
        )
    return result


def _shortened(sample: Sample) -> Sample:
    return msgspec.structs.replace(
        sample,
        prompt=shorten(sample.prompt, COMPLETION_CHARACTERS),
        completion=shorten(sample.completion, COMPLETION_CHARACTERS),
    )


def _present(file: Path) -> Path:
    if not file.exists():
        raise ArtifactError(f"{file} is missing, and the report shows what stands in it. Build it again.")
    return file
