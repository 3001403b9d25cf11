"""Which members of a cluster are duplicates: those whose word runs stand mostly in a richer one that is kept.

A cluster only says that its members are linked by chance-like agreements, so each is compared anew.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lmlab.corpus import kernels
from lmlab.corpus.characters import distinct, word_runs
from lmlab.corpus.schema import load_text, table_of
from lmlab.dataflow.shuffle import gather, scatter
from lmlab.storage import Path

SCANNED = 256
"""Members of a cluster that are all compared with each other; in a larger one the likely ones are."""
PROBES, LIKELY = 32, 32
"""A document's rarest word runs, which vote for kept ones, and how many of those are compared with it."""

MEMBERS = pa.schema(
    [("cluster", pa.int64()), ("row", pa.int64()), ("id", pa.string()), ("grams", pa.large_list(pa.uint64()))]
)
DUPLICATES = pa.schema(
    [("row", pa.int64()), ("duplicate_of", pa.string()), ("kept_row", pa.int64()),
     ("containment", pa.float64()), ("jaccard", pa.float64()), ("novel_words", pa.int64())]
)  # fmt: skip


class Members(NamedTuple):
    """Members of clusters that stand in one part."""

    rows: np.ndarray
    """In the part."""
    first_row: int
    """Number of the part's first row among all rows."""
    cluster: np.ndarray
    bucket: np.ndarray
    """Clusters of one bucket are verified together."""


def scatter_members(task: tuple[Path, Path, Members], buckets: int, words: int) -> None:
    """Scatter the sorted distinct word runs of cluster members; a text of fewer words is one run."""
    part, scattered, members = task
    scatter(scattered, _word_runs(part, members, words), buckets, MEMBERS)


def _word_runs(part: Path, members: Members, words: int) -> Iterator[tuple[pa.Table, np.ndarray]]:
    table = load_text(part).take(pa.array(members.rows))
    ids = table.column("id").combine_chunks()
    done = 0
    for runs in word_runs(table, words, 1, by_paragraph=False):  # what has a signature has a word: no gaps
        counts = np.bincount(runs.document - done)
        grams = [distinct(own) for own in np.split(runs.grams, np.cumsum(counts)[:-1])]
        own = slice(done, done + len(grams))
        ends = pa.array(np.cumsum([0, *map(len, grams)]))
        lists = pa.LargeListArray.from_arrays(ends, pa.array(np.concatenate(grams)))
        columns = [members.cluster[own], members.rows[own] + members.first_row, ids[own], lists]
        yield pa.table(columns, schema=MEMBERS), members.bucket[own]
        done += len(grams)


def verify_bucket(bucket: int, scattered: Sequence[Path], buckets: int, containment: float) -> pa.Table:
    """The duplicates in the clusters of one bucket."""
    table = gather(scattered, bucket, buckets, MEMBERS)
    lists = table.column("grams").combine_chunks()
    values, ends = lists.values.to_numpy(), lists.offsets.to_numpy()
    grams = [values[a:b] for a, b in pairwise(ends)]
    row, cluster = (table.column(name).to_numpy() for name in ("row", "cluster"))
    ids = table.column("id")
    order = np.lexsort((row, -np.diff(ends), cluster))
    found = []
    for group in np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1):
        for member, kept, shared in duplicates([grams[i] for i in group], containment):
            own, other = group[member], group[kept]
            share, union = shared / len(grams[own]), len(grams[own]) + len(grams[other]) - shared
            novel = len(grams[own]) - shared
            found.append((row[own], ids[other].as_py(), row[other], share, shared / union, novel))
    return table_of(found, DUPLICATES)


def duplicates(grams: Sequence[np.ndarray], containment: float) -> Iterator[tuple[int, int, int]]:
    """(member, the kept member it mostly stands in, runs they share) of a cluster, given richest first."""
    kept: list[int] = []
    likely = _Likely(grams) if len(grams) > SCANNED else None
    for member, own in enumerate(grams):
        if not len(own):
            continue
        candidates = kept if likely is None else likely.of(member)
        shared = [(kernels.common(own, grams[other]), -other) for other in candidates]
        most, other = max(shared, default=(0, 0))
        if most >= containment * len(own):
            yield member, -other, most
            continue
        kept.append(member)
        if likely is not None:
            likely.add(member)


class _Likely:
    """Finds the kept members of a large cluster that hold a document's rarest word runs."""

    def __init__(self, grams: Sequence[np.ndarray]) -> None:
        sizes = [len(own) for own in grams]
        _, inverse, self.members = np.unique(np.concatenate(grams), return_inverse=True, return_counts=True)
        self.grams = np.split(inverse, np.cumsum(sizes)[:-1])
        self.heads = np.full(len(self.members), -1)
        self.links, self.owners = np.empty((2, sum(sizes)), np.int64)
        self.used = 0

    def of(self, member: int) -> list[int]:
        """The members added before that share most of the rarest runs, in order."""
        own = self.grams[member]
        rarest = own[np.argsort(self.members[own], kind="stable")[:PROBES]]
        votes = np.zeros(len(self.grams), np.int64)
        kernels.vote(self.heads, self.links, self.owners, rarest, votes)
        best = np.argsort(-votes, kind="stable")[:LIKELY]
        return sorted(best[votes[best] > 0].tolist())

    def add(self, member: int) -> None:
        """Let a kept member be found."""
        kernels.post(self.heads, self.links, self.owners, self.used, self.grams[member], member)
        self.used += len(self.grams[member])
