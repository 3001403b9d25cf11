"""Clusters are connected components: held against a union-find that shares nothing with the real code."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.corpus.components import clusters, star_edges


def union_find(rows, edges):
    """Components of at least two rows, the slow and obvious way."""
    parent = list(range(rows))

    def root(row):
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for a, b in edges:
        parent[root(a)] = root(b)
    groups = {}
    for row in range(rows):
        groups.setdefault(root(row), set()).add(row)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def found(rows, edges, largest=1 << 62):
    left, right = np.array(edges, int).reshape(-1, 2).T
    made = clusters(rows, left, right, largest)
    assert made.converged
    assert (np.diff(made.cluster) >= 0).all()
    groups = {}
    for row, cluster in zip(made.row.tolist(), made.cluster.tolist(), strict=True):
        groups.setdefault(cluster, []).append(row)
    assert made.sizes.tolist() == [len(group) for group in groups.values()]
    return list(groups.values())


def as_sets(groups):
    return {frozenset(group) for group in groups}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).filter(lambda e: e[0] != e[1]), max_size=60)
)
def test_clusters_are_those_of_a_union_find(edges):
    assert as_sets(found(41, edges)) == union_find(41, [(a, b) for a, b in edges])


@pytest.mark.parametrize("edges_per_row", [0.3, 0.5, 1.0])
def test_large_random_graphs(edges_per_row):
    draw = np.random.default_rng(3)
    edges = draw.integers(0, 20_000, (int(20_000 * edges_per_row), 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    assert as_sets(found(20_000, edges)) == union_find(20_000, edges.tolist())


def test_chain_of_ten_thousand_is_one_cluster_whatever_the_order_of_its_edges():
    draw = np.random.default_rng(0)
    edges = [(i, i + 1) for i in draw.permutation(9_999).tolist()]
    assert found(10_000, edges) == [list(range(10_000))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=30))
def test_rows_that_share_a_key_in_any_band_are_linked_and_zero_is_no_key(rows):
    bands = np.array(rows, np.uint64)
    edges = [pair for band in bands.T for pair in zip(*star_edges(band), strict=True)]
    pairs = [
        (i, j) for i in range(len(rows)) for j in range(i) if ((bands[i] == bands[j]) & (bands[i] > 0)).any()
    ]
    assert as_sets(found(len(rows), edges)) == union_find(len(rows), pairs)


def test_large_cluster_is_cut_into_pieces_that_keep_stars_together():
    stars = [(first, first + i) for first in range(0, 100, 10) for i in range(1, 10)]
    chain = [(first, first + 19) for first in range(0, 90, 10)]
    pieces = found(100, stars + chain, largest=20)
    assert [len(piece) for piece in pieces] == [20] * 5
    assert found(0, []) == []
