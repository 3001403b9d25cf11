"""Topics and buckets: documents by the nearest centroid of a frozen codebook, then by quality inside a topic.

Codebook and boundaries are stored and can be used again, so that topics and buckets keep their meaning. What
they are about is told by their content, words and domains, never by a number.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from scipy.sparse import csr_matrix

from lmlab.core.errors import InputError
from lmlab.corpus.attributes import read_attribute
from lmlab.corpus.schema import text_sizes
from lmlab.corpus.traits import kernels
from lmlab.corpus.traits.embed import vectors_of
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.storage import Path

TOPICS = pa.schema([("id", pa.string()), ("topic", pa.int32()), ("similarity", pa.float32())])
BUCKETS = pa.schema([("id", pa.string()), ("topic", pa.int32()), ("quantile", pa.int32())])
CODEBOOK = "codebook.safetensors"
_WORD = re.compile(r"[^\W\d_]{3,20}")
_WORDS, _READ_ROWS, _READ_CHARACTERS = 8, 500, 5_000
_ROUNDS = 30
SCORES = 1 << 18
"""Scores of a topic that are looked at for its boundaries: below that they are exact."""
Edges = list[list[float]]
"""Boundaries between the quantiles of each topic, ascending."""


def write_codebook(
    embeddings: Path, out: Path, topics: int, sample: int, seed: int, parts: list[str]
) -> None:
    """Cluster a sample of the embeddings by k-means over angles, begun as k-means++."""
    from safetensors.numpy import save

    share = -(-sample // len(parts))
    tables = (read_parquet(embeddings / part).slice(0, share) for part in parts)
    vectors = np.concatenate([vectors_of(table) for table in tables])
    vectors = vectors[(vectors != 0).any(axis=1)]
    if len(vectors) < topics:
        raise InputError(
            f"{embeddings} has {len(vectors)} embeddings of words, fewer than {topics} topics. Ask for fewer."
        )
    draw = np.random.default_rng(seed)
    chosen = [int(draw.integers(len(vectors)))]
    distances = np.ones(len(vectors), np.float32)
    while len(chosen) < topics:
        distances = np.minimum(distances, 1 - _nearest(vectors, vectors[chosen[-1:]].T)[1]).clip(1e-9)
        sums = distances.cumsum(dtype=np.float64)
        chosen.append(int(np.searchsorted(sums, draw.random() * sums[-1])))
    centroids = vectors[chosen].T
    for _ in range(_ROUNDS):
        members = _nearest(vectors, centroids)[0], np.arange(len(vectors))
        sums = csr_matrix((np.ones(len(vectors), np.float32), members), (topics, len(vectors))) @ vectors
        lengths = np.sqrt((sums * sums).sum(axis=1))
        moved = np.where(lengths > 0, sums.T / np.maximum(lengths, 1e-9), centroids).astype(np.float32)
        centroids, is_still = moved, np.array_equal(moved, centroids)
        if is_still:
            break
    (out / CODEBOOK).write_bytes(save({"centroids": np.ascontiguousarray(centroids)}))


def assign_topics(embeddings: Path, out: Path, read: list[str], part: Path) -> dict[int, Counter[str]]:
    """Write the topics of one part of documents by the codebook in `out`; what was seen of each topic.

    Words are only seen in the parts that are to be `read`: they would fill the memory.
    """
    from safetensors.numpy import load

    centroids = load((out / CODEBOOK).read_bytes())["centroids"]
    table = read_parquet(part, ["id", "text", "meta"])
    vectors = vectors_of(read_attribute(embeddings, part.name, "embedding", table.column("id")))
    if vectors.shape[1] != len(centroids):
        raise InputError(
            f"The codebook is for {len(centroids)} dims, {embeddings} has {vectors.shape[1]}. Embed with the "
            "projection that the codebook was made with."
        )
    topics, similarities = _nearest(vectors, centroids)
    write_parquet(out / part.name, pa.table([table.column("id"), topics, similarities], schema=TOPICS))
    seen = _seen(topics, table)
    rows = _READ_ROWS if part.name in read else 0
    for topic, text in zip(topics[:rows].tolist(), table.column("text"), strict=False):
        words = set(_WORD.findall(text.as_py()[:_READ_CHARACTERS].lower()))
        seen[topic].update({"read": 1, **{f"word {word}": 1 for word in words}})
    return seen


def described(parts: Sequence[dict[int, Counter[str]]], count: int) -> list[dict[str, Any]]:
    """A row for each topic: its most telling words, its size, its domains."""
    seen = [_sum(part[topic] for part in parts if topic in part) for topic in range(count)]
    everywhere = _sum(seen)

    def words(topic: Counter[str]) -> list[str]:
        def weight(word: str) -> float:
            here = topic[word] / topic["read"]
            return here * float(np.log(here * everywhere["read"] / everywhere[word]))

        found = [word for word in topic if word.startswith("word ")]
        return [word[5:] for word in sorted(found, key=lambda word: (-weight(word), word))[:_WORDS]]

    return [{"topic": n, "words": words(topic), **_content(topic)} for n, topic in enumerate(seen)]


def sample_scores(topics: Path, scores: Path, most: int, part: Path) -> dict[int, np.ndarray]:
    """Scores by topic of the first documents of a part, which are a sample since ids are hashes."""
    found, values = _topics_and_scores(topics, scores, part.name, read_parquet(part, ["id"]))
    return {topic: values[found == topic][:most] for topic in np.unique(found).tolist()}


def edges_of(samples: Sequence[dict[int, np.ndarray]], topics: int, quantiles: int) -> Edges:
    """What cuts each topic into `quantiles` parts of equal size; zeros for a topic without documents."""
    inner, none = np.arange(1, quantiles) / quantiles, [np.zeros(1, np.float32)]
    scores = [np.concatenate([part[t] for part in samples if t in part] or none) for t in range(topics)]
    return [np.quantile(values, inner, method="lower").tolist() for values in scores]


def assign_buckets(
    topics: Path, scores: Path, out: Path, edges: Edges, part: Path
) -> dict[int, Counter[str]]:
    """Write the bucket of every document of a part; what was seen of bucket topic * quantiles + quantile."""
    table = read_parquet(part, ["id", "text", "meta"])
    found, values = _topics_and_scores(topics, scores, part.name, table)
    quantiles = (values[:, None] > np.array(edges, np.float32)[found]).sum(axis=1, dtype=np.int32)
    write_parquet(out / part.name, pa.table([table.column("id"), found, quantiles], schema=BUCKETS))
    return _seen(found * (len(edges[0]) + 1) + quantiles, table)


def tabulated(
    topics: list[dict[str, Any]],
    edges: Edges,
    parts: Sequence[dict[int, Counter[str]]],
    bytes_per_token: float,
) -> list[dict[str, Any]]:
    """The rows of buckets.json: each topic with its quantiles of quality, and what is in each."""
    for topic in topics:
        topic["quantiles"] = []
        for quantile, (lower, upper) in enumerate(pairwise([0.0, *edges[topic["topic"]], 1.0])):
            key = topic["topic"] * (len(edges[0]) + 1) + quantile
            content = _content(_sum(part[key] for part in parts if key in part))
            tokens = round(content["bytes"] / bytes_per_token)
            topic["quantiles"].append({"lower": lower, "upper": upper, "tokens": tokens, **content})
    return topics


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    topics, similarities = np.empty(len(vectors), np.int32), np.empty(len(vectors), np.float32)
    kernels.nearest(vectors, np.ascontiguousarray(centroids), topics, similarities)
    return topics, similarities


def _topics_and_scores(
    topics: Path, scores: Path, part: str, table: pa.Table
) -> tuple[np.ndarray, np.ndarray]:
    found = read_attribute(topics, part, "topic", table.column("id")).column("topic").to_numpy()
    return found, read_attribute(scores, part, "score", table.column("id")).column("score").to_numpy()


def _seen(keys: np.ndarray, table: pa.Table) -> dict[int, Counter[str]]:
    """By key: documents, bytes, and "domain NAME" for each domain."""
    seen = {key: Counter[str]() for key in np.unique(keys).tolist()}
    for key, size, meta in zip(keys.tolist(), text_sizes(table).tolist(), table.column("meta"), strict=True):
        domain = orjson.loads(meta.as_py()).get("domain")
        seen[key].update({"documents": 1, "bytes": size, f"domain {domain}": 1})
    return seen


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total = Counter[str]()
    for counter in counters:
        total.update(counter)
    return total


def _content(seen: Counter[str]) -> dict[str, Any]:
    domains = {name[7:]: count for name, count in sorted(seen.items()) if name.startswith("domain ")}
    return {"documents": seen["documents"], "bytes": seen["bytes"], "domains": domains}
