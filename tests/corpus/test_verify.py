"""Members of a cluster are only candidates: what verification drops, and what it costs in large clusters."""

import numpy as np
import pytest

from lmlab.corpus.verify import SCANNED, duplicates


def grams(*values):
    return np.array(sorted(values), np.uint64)


def test_what_is_mostly_in_a_richer_one_is_dropped_and_the_richer_one_named():
    rows = [grams(*range(1, 11)), grams(1, 2, 3, 4), grams(1, 2, 50, 51)]
    assert list(duplicates(rows, 0.75)) == [(1, 0, 4)]


def test_member_without_enough_in_common_is_kept():
    rows = [grams(1, 2, 3, 4), grams(1, 2, 3, 9), grams(1, 2, 8, 9)]
    assert [member for member, _, _ in duplicates(rows, 0.75)] == [1]


def test_members_without_words_are_never_called_duplicates():
    assert list(duplicates([grams(), grams()], 0.75)) == []


def test_of_equals_the_first_is_kept():
    assert list(duplicates([grams(1, 2)] * 3, 0.75)) == [(1, 0, 2), (2, 0, 2)]


@pytest.mark.parametrize("originals", [3, 700])
def test_large_cluster_is_decided_as_by_comparing_all(originals):
    draw = np.random.default_rng(5)
    common = draw.integers(0, 2**63, 40).astype(np.uint64)  # boilerplate that all of them hold
    texts = [np.r_[common, draw.integers(0, 2**63, 100).astype(np.uint64)] for _ in range(originals)]
    copies = [
        np.r_[texts[i % originals][:130], draw.integers(0, 2**63, 5).astype(np.uint64)] for i in range(900)
    ]
    rows = [np.unique(row) for row in texts + copies]
    assert len(rows) > SCANNED
    found = list(duplicates(rows, 0.75))
    assert [(member, kept) for member, kept, _ in found] == [
        (originals + i, i % originals) for i in range(900)
    ]
    assert {shared for _, _, shared in found} == {130}
