"""The step `report`: one self-contained HTML file about an experiment, from its artifacts."""

from dataclasses import dataclass

from lmlab.artifacts import Artifact, Out, step

FILE = "report.html"


@dataclass(frozen=True)
class Report(Artifact):
    """A report; its folder holds one HTML file."""

    headline: str
    """The result in one line."""
    file: str
    """Name of the HTML file."""


@step(local_files=True)
def report(
    out: Out,
    run: Artifact,
    baseline: Artifact,
    evaluation: Artifact,
    bet: Artifact,
    called: Artifact,
    *,
    corpus: Artifact,
    ladder: Artifact,
    exported: Artifact,
    samples: Artifact,
    title: str,
    question: str,
) -> Report:
    """Write report.html: answer, scores, bet, curves, corpus, samples, cost, settings and lineage.

    Every number is read from the artifacts' files and records. Raises ArtifactError naming the file and the
    field that is missing.
    """
    from lmlab.reports.facts import Sources, gather
    from lmlab.reports.page import headline, render

    out.status("reading the artifacts")
    sources = Sources(run, baseline, evaluation, bet, called, corpus, ladder, exported, samples)
    facts = gather(sources, out, title=title, question=question)
    out.status("drawing")
    (out.path / FILE).write_text(render(facts))
    return Report(headline=headline(facts), file=FILE)
