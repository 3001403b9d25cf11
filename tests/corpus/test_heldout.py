"""The held-out split: enough of every domain, decided by id alone, or an error that names the domain."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Holdout, heldout


def ids(count, prefix="x"):
    return [f"{prefix}{i}" for i in range(count)]


def held_out(ids, domains, sizes, holdout):
    names, domain = np.unique(np.array(domains, dtype=str), return_inverse=True)
    return heldout.held_out(heldout.ranks_of(ids, holdout.seed), domain, names.tolist(), sizes, holdout)


def test_share_of_a_large_domain_is_held_out():
    chosen = held_out(ids(20_000), ["prose"] * 20_000, np.full(20_000, 1000), Holdout())
    assert 150 <= chosen.sum() <= 250


def test_small_domain_gets_two_documents_and_fifty_kilobytes():
    sizes = np.array([30_000] * 13)
    chosen = held_out(ids(13), ["json"] * 13, sizes, Holdout())
    assert chosen.sum() == 2
    assert sizes[chosen].sum() == 60_000


@settings(max_examples=50, deadline=None)
@given(
    counts=st.lists(st.integers(4, 60), min_size=1, max_size=4),
    size=st.integers(30_000, 90_000),
    seed=st.integers(0, 9),
)
def test_every_domain_has_both_minima_and_text_to_train_on(counts, size, seed):
    names = [f"d{k}" for k, count in enumerate(counts) for _ in range(count)]
    sizes = np.full(len(names), size)
    chosen = held_out(ids(len(names)), names, sizes, Holdout(seed=seed))
    for name in set(names):
        own = np.array(names) == name
        assert (chosen & own).sum() >= 2
        assert sizes[chosen & own].sum() >= 50_000
        assert (~chosen & own).any()


def test_choice_does_not_depend_on_the_order_or_on_other_domains():
    sizes = np.arange(40) * 100 + 40_000
    names = ["a"] * 20 + ["b"] * 20
    chosen = held_out(ids(40), names, sizes, Holdout())
    backwards = held_out(ids(40)[::-1], names[::-1], sizes[::-1], Holdout())
    assert (backwards[::-1] == chosen).all()
    assert (held_out(ids(40)[:20], names[:20], sizes[:20], Holdout()) == chosen[:20]).all()


def test_another_seed_holds_out_other_documents():
    arguments = (ids(500), ["a"] * 500, np.full(500, 20_000))
    assert (held_out(*arguments, Holdout(seed=0)) != held_out(*arguments, Holdout(seed=1))).any()


@pytest.mark.parametrize("sizes", [[60_000], [60_000, 60_000], [10_000] * 5])
def test_domain_too_small_to_hold_out_of_is_named(sizes):
    with pytest.raises(InputError, match=r"Domain 'tiny' has \d documents, .* too little to hold out 2"):
        held_out(ids(len(sizes)), ["tiny"] * len(sizes), np.array(sizes), Holdout())


def test_impossible_share_is_refused():
    with pytest.raises(ConfigError, match=r"share=1\.0"):
        Holdout(share=1.0)
