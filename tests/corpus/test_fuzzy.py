"""Near duplicates: how many planted pairs are found, what joins a cluster, and what a cluster drops."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from lmlab.core.errors import ConfigError
from lmlab.corpus import Fuzzy
from lmlab.corpus.fuzzy import band_keys, clusters, verify

LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789"))


def planted(jaccard, pairs, seed):
    """Pairs of texts of blocks, each sharing as many of its blocks as that Jaccard similarity needs."""
    draw = np.random.default_rng(seed)
    blocks, size = 60, 12
    shared = round(blocks * 2 * jaccard / (1 + jaccard))
    texts, truth = [], []
    for _ in range(pairs):
        pool = ["".join(draw.choice(LETTERS, size)) for _ in range(2 * blocks - shared)]
        # A gap of punctuation would be cleaned away, so blocks meet; seams are in the measured Jaccard.
        left, right = pool[:blocks], pool[:shared] + pool[blocks:]
        texts += ["".join(left), "".join(right)]
        sets = [{text[i : i + 5] for i in range(len(text) - 4)} for text in texts[-2:]]
        truth.append(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))
    return texts, np.array(truth)


@pytest.mark.parametrize("jaccard", [0.5, 0.65, 0.72, 0.78, 0.85, 0.95])
def test_planted_pairs_are_found_as_often_as_theory_says(jaccard):
    texts, truth = planted(jaccard, 300, int(jaccard * 100))
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    keys = band_keys(table, Fuzzy())
    found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
    wanted = 1 - (1 - truth**11) ** 26
    # Three standard errors of 300 draws, and 0.01 that the spec allows.
    tolerance = 3 * float(np.sqrt((wanted * (1 - wanted)).sum())) / 300 + 0.01
    assert abs(found - wanted.mean()) <= tolerance


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=30))
def test_clusters_are_the_components_of_rows_that_share_a_key(rows):
    bands = np.array(rows, np.uint64)
    pairs = [
        (i, j)
        for i in range(len(rows))
        for j in range(i)
        if any(a == b != 0 for a, b in zip(rows[i], rows[j], strict=True))
    ]
    left, right = (np.array(side, int) for side in (zip(*pairs, strict=True) if pairs else ([], [])))
    shape = (len(rows), len(rows))
    _, label = connected_components(coo_matrix((np.ones(len(left)), (left, right)), shape), directed=False)
    wanted = [set(np.flatnonzero(label == value)) for value in np.unique(label)]
    assert {frozenset(group.tolist()) for group in clusters(bands)} == {
        frozenset(map(int, group)) for group in wanted if len(group) > 1
    }


def test_chain_of_ten_thousand_is_one_cluster():
    rows = np.arange(10_000, dtype=np.uint64)
    # Row i shares its first key with i - 1 or its second with i + 1: no key has more than two rows.
    bands = np.stack([(rows + 1) // 2 + 1, rows // 2 + 20_000], axis=1)
    (group,) = clusters(bands)
    assert group.tolist() == list(range(10_000))


def test_no_documents_make_no_clusters():
    assert clusters(np.zeros((0, 26), np.uint64)) == []


def grams(*values):
    return np.array(sorted(values), np.uint64)


def test_document_that_is_mostly_in_a_longer_one_is_dropped_and_the_longer_one_named():
    rows = {0: grams(1, 2, 3, 4), 1: grams(*range(1, 11)), 2: grams(1, 2, 50, 51)}
    (dropped,) = verify([0, 1, 2], rows, 0.75)
    assert (dropped.row, dropped.kept, dropped.containment) == (0, 1, 1.0)


def test_cluster_member_without_enough_in_common_is_kept():
    rows = {0: grams(1, 2, 3, 4), 1: grams(1, 2, 3, 9), 2: grams(1, 2, 8, 9)}
    assert [duplicate.row for duplicate in verify([0, 1, 2], rows, 0.75)] == [1]


def test_documents_without_words_are_never_called_duplicates():
    assert verify([0, 1], {0: grams(), 1: grams()}, 0.75) == []


def test_of_equals_the_first_by_id_is_kept():
    rows = {5: grams(1, 2), 3: grams(1, 2), 9: grams(1, 2)}
    assert [(d.row, d.kept) for d in verify([9, 5, 3], rows, 0.75)] == [(5, 3), (9, 3)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"bands": 25}, "bands=25 does not divide perms=286"), ({"containment": 0.0}, "containment=0.0"),
     ({"cap": 0}, "cap=0")],
)  # fmt: skip
def test_impossible_parameters_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        Fuzzy(**wrong)
