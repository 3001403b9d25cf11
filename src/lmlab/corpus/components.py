"""Clusters of rows that are linked, directly or over others: one exact pass on one machine, never rounds.

Memory is the edges plus a few numbers for every row that has one. Peers pass labels along for a fixed number
of rounds and may stop early; here nothing can be left unlinked, and the result is checked for it.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clusters:
    """Rows in clusters of at least two."""

    row: np.ndarray
    """int64, by cluster and ascending in each."""
    cluster: np.ndarray
    """int64 from 0, ascending."""
    converged: bool
    """Whether both ends of every edge are in one cluster."""

    @property
    def sizes(self) -> np.ndarray:
        """Rows of every cluster."""
        return np.bincount(self.cluster)


def star_edges(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every key but 0 that several rows share, an edge from the first of them to each other one."""
    rows = np.flatnonzero(keys)
    rows = rows[np.argsort(keys[rows], kind="stable")]
    is_first = np.r_[True, np.diff(keys[rows]) != 0][: len(rows)]
    first = rows[is_first][np.cumsum(is_first) - 1]
    return first[~is_first], rows[~is_first]


def clusters(rows: int, left: np.ndarray, right: np.ndarray, largest: int = 1 << 62) -> Clusters:
    """The connected components of `rows` rows under these edges between different rows, lonely rows left out.

    A component of more than `largest` rows is cut into pieces, rows of one star side by side.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if not len(left):
        return Clusters(left, left, True)
    is_linked = np.zeros(rows, bool)
    is_linked[left] = is_linked[right] = True
    linked = np.flatnonzero(is_linked)
    place = np.cumsum(is_linked, dtype=np.int32) - np.int32(1)
    ends = (place[left], place[right])
    graph = coo_matrix((np.ones(len(left), np.int8), ends), shape=(len(linked), len(linked)))
    count, label = connected_components(graph, directed=False)
    converged = bool((label[ends[0]] == label[ends[1]]).all())
    sizes = np.bincount(label)
    if sizes.max() > largest:
        star = np.arange(len(linked))
        np.minimum.at(star, ends[1], ends[0])
        order = np.lexsort((star, label))
    else:  # a sparse matrix is built by counting, which sorts four times faster than sorting
        where = (label, np.arange(len(label), dtype=np.int32))
        order = coo_matrix((np.ones(len(label), np.int8), where)).tocsr().indices
    piece = (np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) // largest
    is_new = (np.diff(np.repeat(np.arange(count), sizes), prepend=-1) != 0) | (np.diff(piece, prepend=0) != 0)
    return Clusters(linked[order], np.cumsum(is_new) - 1, converged)
