"""Steps that say something of documents: language, quality, embedding, topic, bucket, register, private data.

Each writes an attribute beside the documents and drops none: `select` does, by rules over these columns.
"""

from dataclasses import dataclass
from functools import partial

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.corpus.steps import Attributes, annotated
from lmlab.corpus.traits.config import GOPHER, KINDS, RUBRIC, Limit, NGrams
from lmlab.dataflow.runner import open_runner

NGRAMS = NGrams()


@dataclass(frozen=True)
class Labels(Artifact):
    """labels.jsonl.zst: documents with a label each."""

    labels: int
    """How many."""
    failures: dict[str, int]
    """Answers without a label, by reason."""


@dataclass(frozen=True)
class QualityModel(Artifact):
    """weights.safetensors, model.json with the report, labels.parquet."""

    auc: float
    """On the dev side, whose documents and near duplicates were not trained on."""
    calibration_error: float
    """Mean difference between promised and true share of good documents (ECE), on the dev side."""
    labels: int
    """Labelled documents."""


@dataclass(frozen=True)
class Embeddings(Attributes):
    """Vectors of length one, and the projection they were made with."""

    dims: int
    """Length of a vector."""


@dataclass(frozen=True)
class Topics(Attributes):
    """Topic of each document, the codebook, and topics.json: words, sizes and domains of each topic."""

    topics: int
    """How many."""
    purity: float
    """Share of documents whose domain is the most frequent one of their topic."""


@dataclass(frozen=True)
class Buckets(Attributes):
    """Topic and quantile of quality of each document, and buckets.json: what is in every bucket."""


@step(resumes=True)
def languages(out: Out, documents: Artifact, unsure: float = 0.6, workers: RunOnly[int] = 2) -> Attributes:
    """Which language each document is in; "und" where the mean probability is below `unsure`.

    SVG, tables and code without prose have none.
    """
    from lmlab.corpus.language import LANGUAGES, languages as told

    return annotated(out, documents, told, LANGUAGES, workers, unsure)


@step(resumes=True)
def label(
    out: Out,
    documents: Artifact,
    model: str,
    url: RunOnly[str],
    rubric: str = RUBRIC,
    sample: int = 1_000,
    *,
    token: RunOnly[tuple[str, ...]] = (),
) -> Labels:
    """Ask a served model to score a sample of documents: labels.jsonl.zst to train a classifier on.

    `url` is that of an OpenAI-compatible API, `token` names its secret. Answers are kept, so an attempt that
    was cut off goes on. Raises HostError for an endpoint that stays silent.
    """
    from lmlab.corpus.llm_extract import Extractor
    from lmlab.corpus.traits.labels import label_sample

    judge = Extractor(url, model, token, prompt=rubric, page_chars=6_000, max_tokens=256, own_words=0)
    counted = label_sample(documents.path, out.path, judge, sample)
    return Labels(labels=counted.pop("labels"), failures=dict(counted))


@step
def train_quality(
    out: Out,
    labelled: Labels | str,
    good: tuple[str, ...],
    documents: Artifact | None = None,
    ngrams: NGrams = NGRAMS,
) -> QualityModel:
    """Learn to tell documents labelled as one of `good` from the others.

    `labelled` is a .jsonl(.zst) file of {"text", "label"}, or of {"id", "label"} about `documents`, or what
    `label` made. 70 % of it is trained on, 15 % calibrates, 15 % measures. InputError for too few labels.
    """
    from lmlab.corpus.traits.classify import read_labelled, train
    from lmlab.storage import Path

    file = Path(labelled) if isinstance(labelled, str) else labelled.path / "labels.jsonl.zst"
    labels = read_labelled(file, documents.path if documents else None)
    report = train(labels, good, ngrams, out.path)
    return QualityModel(
        auc=report["auc"]["value"], calibration_error=report["calibration"]["ece"], labels=labels.num_rows
    )


@step(resumes=True)
def quality(
    out: Out,
    documents: Artifact,
    model: Artifact | str,
    good: tuple[str, ...] = ("hq",),
    workers: RunOnly[int] = 2,
) -> Attributes:
    """The probability that each document is good, by a trained model or a fastText file (.bin, .ftz).

    `good` names the labels of the fastText model that mean a good document; a trained model knows its own.
    """
    from lmlab.corpus.traits.classify import SCORES, score
    from lmlab.storage import Path

    place = Path(model) if isinstance(model, str) else model.path
    return annotated(out, documents, score, SCORES, workers, (place, good))


@step(resumes=True)
def embed(
    out: Out,
    documents: Artifact,
    dims: int = 128,
    sample: int = 10_000,
    seed: int = 0,
    fitted: Embeddings | None = None,
    workers: RunOnly[int] = 2,
) -> Embeddings:
    """Embed each document by the words in it; with the projection of `fitted`, if given, in its space."""
    from lmlab.corpus.traits.embed import PROJECTION, embed as embedded, embeddings, fit, load

    if fitted is None:
        with open_runner(workers) as runner:
            runner.run(partial(fit, out.path, dims, sample, seed), [documents.path], name="fit")
    else:
        (fitted.path / PROJECTION).copy_to(out.path / PROJECTION)
    dims = load(out.path).shape[1]
    made = annotated(out, documents, embedded, embeddings(dims), workers, out.path)
    return Embeddings(documents=made.documents, columns=made.columns, dims=dims)


@step
def topics(
    out: Out,
    documents: Artifact,
    embeddings: Embeddings,
    count: int = 64,
    sample: int = 50_000,
    seed: int = 0,
    codebook: Topics | None = None,
    workers: RunOnly[int] = 2,
) -> Topics:
    """The topic of each document: the nearest of `count` centroids, or of those of an earlier `codebook`."""
    from lmlab.corpus.schema import parts_of
    from lmlab.corpus.traits.features import spread
    from lmlab.corpus.traits.topics import CODEBOOK, TOPICS, assign_topics, described, write_codebook
    from lmlab.storage import write_json

    parts = parts_of(documents.path)
    some = [part.name for part in spread(parts)]
    with open_runner(workers) as runner:
        if codebook is None:
            cluster = partial(write_codebook, embeddings.path, out.path, count, sample, seed)
            runner.run(cluster, [some], name="cluster")
        else:
            (codebook.path / CODEBOOK).copy_to(out.path / CODEBOOK)
            count = codebook.topics
        assign = partial(assign_topics, embeddings.path, out.path, some)
        found = described(runner.run(assign, parts, name="topics"), count)
    total = sum(row["documents"] for row in found)
    write_json(out.path / "topics.json", {"topics": found})
    purest = sum(max(row["domains"].values(), default=0) for row in found)
    return Topics(
        documents=total, columns=tuple(TOPICS.names[1:]), topics=len(found), purity=purest / max(1, total)
    )


@step
def buckets(
    out: Out,
    documents: Artifact,
    topics: Topics,
    scores: Attributes,
    quantiles: int = 4,
    boundaries: Buckets | None = None,
    bytes_per_token: float = 4.2,
    workers: RunOnly[int] = 2,
) -> Buckets:
    """Cut each topic into quantiles of quality, or at the boundaries of an earlier buckets artifact.

    buckets.json says of every bucket: its boundaries, documents, bytes, estimated tokens and domains.
    """
    from lmlab.corpus.schema import parts_of
    from lmlab.corpus.traits import topics as traits
    from lmlab.storage import read_json, write_json

    about = read_json(topics.path / "topics.json")["topics"]
    parts = parts_of(documents.path)
    with open_runner(workers) as runner:
        if boundaries is None:
            draw = partial(traits.sample_scores, topics.path, scores.path, -(-traits.SCORES // len(parts)))
            edges = traits.edges_of(runner.run(draw, parts, name="boundaries"), len(about), quantiles)
        else:
            edges = read_json(boundaries.path / "buckets.json")["edges"]
        assign = partial(traits.assign_buckets, topics.path, scores.path, out.path, edges)
        counted = runner.run(assign, parts, name="buckets")
    table = traits.tabulated(about, edges, counted, bytes_per_token)
    write_json(out.path / "buckets.json", {"edges": edges, "topics": table})
    return Buckets(documents=sum(row["documents"] for row in table), columns=tuple(traits.BUCKETS.names[1:]))


@step(resumes=True)
def registers(
    out: Out, documents: Artifact, limits: tuple[Limit, ...] = GOPHER, workers: RunOnly[int] = 2
) -> Attributes:
    """What kind of text each document is, its Gopher and C4 statistics, and the first limit it breaks."""
    from lmlab.corpus.traits.registers import REGISTERS, describe

    return annotated(out, documents, describe, REGISTERS, workers, limits)


@step(resumes=True)
def redact(
    out: Out, documents: Artifact, kinds: tuple[str, ...] = KINDS, workers: RunOnly[int] = 2
) -> Attributes:
    """Where personal data and secrets stand, each with a pseudonym to put there; RemoveSpans puts it."""
    from lmlab.corpus.traits.redact import SPANS, find_spans

    return annotated(out, documents, find_spans, SPANS, workers, kinds)
