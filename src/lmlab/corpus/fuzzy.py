"""Near duplicates: MinHash bands propose clusters, shared word runs decide within them.

A cluster only says that its members are linked by chance-like agreements; a document is dropped when
most of its own word runs stand in a longer document that is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lmlab.corpus import kernels
from lmlab.corpus.characters import classes
from lmlab.corpus.config import Fuzzy
from lmlab.corpus.schema import load_text, text_buffers
from lmlab.storage import Path

MAX_COMPARED = 256
"""Kept members of one cluster that a document is compared with, the longest first."""


@dataclass(frozen=True)
class GramsTask:
    """Some rows of one part, whose word runs are wanted."""

    part: Path
    rows: np.ndarray
    words: int


@dataclass(frozen=True)
class Duplicate:
    """Row `row` says mostly what the kept row `kept` says."""

    row: int
    kept: int
    containment: float


def band_keys(table: pa.Table, fuzzy: Fuzzy) -> np.ndarray:
    """uint64 [rows, bands]: an equal key in any column makes candidates; zeros for a text too short."""
    draw = np.random.default_rng(fuzzy.seed)
    factors, addends = draw.integers(0, 1 << 32, (2, fuzzy.perms), dtype=np.uint32)
    bands = np.zeros((table.num_rows, fuzzy.bands), np.uint64)
    # Odd factors make x -> factor * x + addend a permutation of the 32-bit numbers.
    kernels.minhash_bands(
        *text_buffers(table), classes(), factors | np.uint32(1), addends, fuzzy.ngram, fuzzy.cap, bands
    )
    return bands


def clusters(bands: np.ndarray) -> list[np.ndarray]:
    """Rows linked through equal keys, directly or over others: arrays of at least two, rows ascending."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    edges = [_edges(bands[:, band]) for band in range(bands.shape[1])]
    left, right = (np.concatenate(side) for side in zip(*edges, strict=True))
    graph = coo_matrix((np.ones(len(left), bool), (left, right)), shape=(len(bands), len(bands)))
    _, label = connected_components(graph, directed=False)
    order = np.argsort(label, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return [group for group in groups if len(group) > 1]


def _edges(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A star for every key that several rows share: its first row to each of the others."""
    rows = np.flatnonzero(keys)
    rows = rows[np.argsort(keys[rows], kind="stable")]
    is_first = np.r_[True, np.diff(keys[rows]) != 0][: len(rows)]
    first = rows[is_first][np.cumsum(is_first) - 1]
    return first[~is_first], rows[~is_first]


def word_grams(task: GramsTask) -> list[np.ndarray]:
    """The sorted distinct word runs (hashes) of each wanted row; a text of fewer words is one run."""
    table = load_text(task.part).take(pa.array(task.rows))
    data, offsets = text_buffers(table)
    grams = np.empty(int(offsets[-1] - offsets[0]) // 2 + len(offsets), np.uint64)
    ends = kernels.word_grams(
        data, offsets, classes(), task.words, 1, False, grams, np.empty(len(grams), np.int32)
    )
    return [np.unique(piece) for piece in np.split(grams[: ends[-1]] if len(ends) else grams[:0], ends[:-1])]


def verify(group: Sequence[int], grams: dict[int, np.ndarray], containment: float) -> list[Duplicate]:
    """The duplicates in a cluster: from the richest document down, each is compared with those kept."""
    ordered = sorted((row for row in group if len(grams[row])), key=lambda row: (-len(grams[row]), row))
    kept: list[int] = []
    dropped = []
    for row in ordered:
        shares = [(kernels.common(grams[row], grams[other]) / len(grams[row]), other) for other in kept]
        best, other = max(shares, key=lambda share: share[0], default=(0.0, row))
        if best >= containment:
            dropped.append(Duplicate(row, other, best))
        elif len(kept) < MAX_COMPARED:
            kept.append(row)
    return dropped
