"""The stages of curation as steps of their own: normalize, find repeats and leaked evals, select, replay.

Those that find write attributes beside the documents and drop nothing; `select` does, by rules over them.
`curate` runs the same stages in one step, with a split.
"""

from dataclasses import dataclass
from typing import Any

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.core.errors import ConfigError
from lmlab.corpus.config import Decontamination, Fuzzy, Normalization, Rule
from lmlab.corpus.steps import FUZZY, Attributes, Documents
from lmlab.dataflow.runner import open_runner
from lmlab.storage import Path

NORMALIZATION, EVALS = Normalization(), Decontamination(common=None)


@dataclass(frozen=True)
class NearDuplicates(Attributes):
    """duplicate_of, containment, jaccard, novel_words, reason: null where a document repeats no other.

    For one corpus they lie beside its documents, for several in a folder for each.
    """

    unsigned: int
    """Documents too short for a signature, which have no candidates."""
    candidates: int
    """Members of clusters; only verification makes one a duplicate."""
    clusters: int
    """Of at least two candidates."""
    largest: int
    """Members of the largest one."""
    duplicates: int
    """Candidates that mostly stand in a richer document that is kept."""
    converged: bool
    """Whether every link was followed to its end."""


@dataclass(frozen=True)
class Paragraphs(Attributes):
    """`spans` of the paragraphs that stand somewhere else too, for `RemoveSpans`."""

    repeats: int
    """How many paragraphs."""
    repeated_bytes: int
    """Their UTF-8 bytes."""


@dataclass(frozen=True)
class Repeats(Attributes):
    """eval, record, overlap, paragraph, reason: null where a document repeats no eval.

    evals/<name>.parquet says which runs of words were looked for, flagged.jsonl shows some that were found.
    """

    flagged: int
    """Documents that repeat an eval."""


@step
def normalize(
    out: Out,
    documents: Artifact | tuple[Artifact, ...],
    normalization: Normalization = NORMALIZATION,
    workers: RunOnly[int] = 2,
) -> Documents:
    """Documents of one or more sources in one schema: id from the text, gaps cut, blanks and repeats out.

    Sources are documents, or folders of Parquet and JSON lines with a column "text". Of equal texts the one
    whose source_id comes first is kept. Raises InputError for rows without text and for no text at all.
    """
    from lmlab.corpus.normalizing import normalize_all

    sources = documents if isinstance(documents, tuple) else (documents,)
    folders = [source.path for source in sources]
    with open_runner(workers) as runner:
        stages = normalize_all(folders, out.path, out.path / "rejected", normalization, runner, out.status)
    return _documents(out, folders[0] if len(folders) == 1 else None, stages)


@step(resumes=True)
def signatures(out: Out, documents: Artifact, fuzzy: Fuzzy = FUZZY, workers: RunOnly[int] = 2) -> Attributes:
    """MinHash band keys of documents, made once for any number of `near_duplicates`."""
    from lmlab.corpus.fuzzy import sign

    with open_runner(workers) as runner:
        count = sign(documents.path, out.path, fuzzy, runner, out.status)
    return Attributes(documents=count, columns=("bands",))


@step
def near_duplicates(
    out: Out,
    documents: Artifact | dict[str, Artifact],
    fuzzy: Fuzzy = FUZZY,
    signed: Artifact | dict[str, Artifact] | None = None,
    workers: RunOnly[int] = 2,
) -> NearDuplicates:
    """Which documents of one corpus, or of several by name, are mostly part of another one.

    `signed` are their `signatures`; None makes them. Raises InputError for signatures of other settings.
    """
    from lmlab.corpus.fuzzy import mark_near_duplicates, sign

    corpora, work = _folders(documents), out.path / ".work"
    with open_runner(workers) as runner:
        if signed is None:
            made = {name: work / "signed" / str(i) for i, name in enumerate(corpora)}
            for name, folder in corpora.items():
                sign(folder, made[name], fuzzy, runner, out.status)
        elif (made := _folders(signed)).keys() != corpora.keys():
            raise ConfigError(
                f"signed has {', '.join(made)}, documents {', '.join(corpora)}, so it is unknown whose "
                "they are. Give both the same names."
            )
        found = mark_near_duplicates(corpora, made, out.path, fuzzy, runner, out.status)
    work.remove_tree()
    return NearDuplicates(
        columns=("duplicate_of", "containment", "jaccard", "novel_words", "reason"), **found
    )


@step
def repeated_paragraphs(
    out: Out, documents: Artifact | dict[str, Artifact], min_bytes: int = 80, workers: RunOnly[int] = 2
) -> Paragraphs:
    """Where paragraphs of at least `min_bytes` stand again: in a document of larger id, or later in one."""
    from lmlab.corpus.paragraphs import mark_paragraphs

    with open_runner(workers) as runner:
        found = mark_paragraphs(_folders(documents), out.path, min_bytes, runner, out.status)
    return Paragraphs(columns=("spans",), **found)


@step
def decontaminate(
    out: Out,
    documents: Artifact,
    evals: dict[str, Artifact],
    settings: Decontamination = EVALS,
    workers: RunOnly[int] = 2,
) -> Repeats:
    """Which documents repeat a record of an eval: folders of documents, Parquet or JSON lines, by name."""
    from lmlab.corpus.attributes import Parts
    from lmlab.corpus.contamination import mark_contaminated

    if not evals:
        raise ConfigError("evals is empty, so no document could be found to repeat one. Name at least one.")
    with open_runner(workers) as runner:
        found = mark_contaminated(documents.path, _folders(evals), out.path, settings, runner, out.status)
    count = int(Parts({"": documents.path}).starts[-1])
    return Repeats(documents=count, columns=tuple(found.column_names[1:]), flagged=found.num_rows)


@step
def select(out: Out, documents: Artifact, rules: tuple[Rule, ...], workers: RunOnly[int] = 2) -> Documents:
    """The documents that all rules keep, applied in order; the others go to rejected/<stage>.

    Where a rule cuts spans, documents are normalized again: new ids, places, and no equal texts.
    """
    from lmlab.corpus.selecting import select_all

    with open_runner(workers) as runner:
        stages = select_all(documents.path, out.path, rules, out.path / "rejected", runner, out.status)
    return _documents(out, documents.path, stages)


@step
def replay(out: Out, documents: Artifact, share: float = 0.5, workers: RunOnly[int] = 2) -> Documents:
    """The negative control: leaves the last `share` of the documents out and shows the others again instead.

    There are as many as before. Ids are random, so the first ones are a fair sample.
    """
    from lmlab.corpus.selecting import replay_all

    if not 0 <= share < 1:
        raise ConfigError(f"share={share} of the documents can't be left out. Choose from 0 to below 1.")
    with open_runner(workers) as runner:
        stage = replay_all(documents.path, out.path, share, runner)
    return _documents(out, documents.path, [stage])


def _documents(out: Out, source: Path | None, stages: list[Any]) -> Documents:
    """What the last stage wrote, with stages.json beside it."""
    from lmlab.corpus.schema import earlier_stages, write_stages

    earlier = earlier_stages(source) if source else []
    write_stages(out.path, [*earlier, *(stage.row() for stage in stages)])
    return Documents(documents=stages[-1].documents_out, size_bytes=stages[-1].bytes_out)


def _folders(given: Artifact | dict[str, Artifact]) -> dict[str, Path]:
    """Folders by name; the only one has none."""
    named = given if isinstance(given, dict) else {"": given}
    return {name: artifact.path for name, artifact in named.items()}
