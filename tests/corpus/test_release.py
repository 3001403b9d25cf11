"""A release is blocked by name, and a domain corpus takes no more than its sources have."""

import pytest
from hypothesis import given, strategies

from lmlab.core.config import decode, encode
from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Counted, Release, Worklist, plan_domain

DONE = Worklist("wiki", "CC-BY-SA-4.0", Counted("wiki", 5, "exact", "2026-11-30"), 0.0, (1,) * 10, 50)


def test_a_release_with_nothing_open_passes_and_survives_json():
    release = Release("pile", "2026.12", {"wiki": 1.0}, (DONE,))
    release.check()
    assert decode(Release, encode(release)) == release


def test_open_items_of_the_mixture_block_it_and_are_named():
    open_ = Worklist("forum", "MIT", None, 0.01, None, 3, waived=("quality: no model for chat",))
    release = Release("pile", "2026.12", {"wiki": 0.5, "forum": 0.5}, (DONE, open_, Worklist("unused")))
    with pytest.raises(InputError, match=r"pile@2026\.12 is blocked by 1 open items \(forum: counts\)"):
        release.check()


@pytest.mark.parametrize("mixture", [{}, {"wiki": 0.0}, {"wiki": 1.0, "books": 1.0}])
def test_a_mixture_of_nothing_or_of_unknown_sources_is_refused(mixture):
    with pytest.raises(ConfigError, match="has worklists of wiki"):
        Release("pile", "2026.12", mixture, (DONE,)).check()


def test_small_sources_are_repeated_up_to_the_limit_and_the_rest_comes_from_the_large():
    taken = plan_domain({"pmc": 40_000, "guidelines": 1_000, "pubmed": 20_000}, 30_000)
    small = next(t for t in taken if t.source == "guidelines")
    assert (small.tokens, small.epochs, small.holdout_tokens) == (3960, 4.0, 10)
    assert abs(sum(t.tokens for t in taken) - 30_000) <= 2


@given(
    tokens=strategies.dictionaries(
        strategies.text("abc", min_size=1), strategies.integers(1, 10**9), min_size=1
    ),
    part=strategies.floats(0.01, 1.0),
    weights=strategies.lists(strategies.floats(0.1, 10), min_size=4, max_size=4),
)
def test_any_reachable_target_is_reached_and_no_limit_passed(tokens, part, weights):
    most = sum(int((count - round(count * 0.01)) * 4.0) for count in tokens.values())
    target = int(most * part)
    given_weights = dict(zip(tokens, weights * len(tokens), strict=False))
    taken = plan_domain(tokens, target, given_weights)
    assert abs(sum(t.tokens for t in taken) - target) <= len(tokens)
    assert all(t.tokens <= 4 * (tokens[t.source] - t.holdout_tokens) for t in taken)


@pytest.mark.parametrize("weights", [{"pmc": 1.0, "pumbed": 1.0}, {"pmc": 0.0, "pubmed": 1.0}, {"pmc": 1.0}])
def test_weights_of_other_sources_or_of_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match=r"weights=.* is no mixture. Give each source a weight above 0"):
        plan_domain({"pmc": 1000, "pubmed": 1000}, 100, weights)


def test_a_target_beyond_all_sources_says_what_they_give():
    with pytest.raises(ConfigError, match=r"pmc gives 3960 tokens in 4 epochs, and 5000 are asked for"):
        plan_domain({"pmc": 1000}, 5000)
