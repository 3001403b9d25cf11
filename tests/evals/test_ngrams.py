"""The n-gram baseline: sound probabilities, equal to the textbook's formula computed naively."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import InputError
from lmlab.evals.ngrams import NgramModel, history_lengths, train_ngrams

VOCAB, EOS = 6, 0
SEQUENCES = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=6)
HISTORY = st.lists(st.integers(0, VOCAB - 1), max_size=8)


def trained(sequences: list[list[int]], order: int) -> NgramModel:
    return train_ngrams([np.array(s, np.uint16) for s in sequences], vocab=VOCAB, eos_id=EOS, order=order)


def probabilities(model: NgramModel, history: list[int]) -> list[float]:
    return [math.exp(-model.nats(np.array([*history, token]))[-1]) for token in range(VOCAB)]


class Naive:
    """Interpolated modified Kneser-Ney with dictionaries and recursion, written from the formula alone."""

    def __init__(self, sequences: list[list[int]], order: int) -> None:
        self.order = order
        self.counts = [Counter() for _ in range(order + 1)]
        for sequence in sequences:
            for k in range(1, order + 1):
                for start in range(len(sequence) - k + 1):
                    gram = tuple(sequence[start : start + k])
                    if EOS not in gram[1:-1]:
                        self.counts[k][gram] += 1
        self.adjusted = [Counter() for _ in range(order + 1)]
        for k in range(1, order + 1):
            for gram, count in self.counts[k].items():
                if k == order or (k > 1 and gram[0] == EOS):
                    self.adjusted[k][gram] = count
                elif extensions := len({longer[0] for longer in self.counts[k + 1] if longer[1:] == gram}):
                    self.adjusted[k][gram] = extensions
        self.discounts = [self.discount(adjusted) for adjusted in self.adjusted]

    @staticmethod
    def discount(adjusted: Counter) -> list[float]:
        n = [sum(value == count for value in adjusted.values()) for count in range(5)]
        if min(n[1:4]) == 0:
            return [0, 0.5, 1, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        found = [0, 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
        return found if all(0 <= value <= count for count, value in enumerate(found)) else [0, 0.5, 1, 1.5]

    def p(self, token: int, history: tuple[int, ...]) -> float:
        """Of `token` after at most order - 1 tokens of history."""
        k = len(history) + 1
        lower = self.p(token, history[1:]) if history else 1 / VOCAB
        followers = {gram: value for gram, value in self.adjusted[k].items() if gram[:-1] == history}
        total = sum(followers.values())
        if not total:
            return lower
        taken = {gram: self.discounts[k][min(value, 3)] for gram, value in followers.items()}
        gram = (*history, token)
        own = max(followers.get(gram, 0) - taken.get(gram, 0), 0) / total
        return own + sum(taken.values()) / total * lower


@given(sequences=SEQUENCES, history=HISTORY, order=st.integers(1, 5))
@settings(deadline=None)
def test_probabilities_after_any_history_sum_to_one(sequences, history, order: int) -> None:
    found = probabilities(trained(sequences, order), history)
    assert min(found) > 0
    assert sum(found) == pytest.approx(1, abs=1e-12)


@given(sequences=SEQUENCES, history=HISTORY, order=st.integers(1, 5))
@settings(deadline=None, max_examples=200)
def test_it_is_the_textbook_model(sequences, history, order: int) -> None:
    naive = Naive(sequences, order)
    starts = [place for place, token in enumerate(history) if token == EOS]
    usable = history[starts[-1] :] if starts else history
    context = tuple(usable[max(0, len(usable) - order + 1) :])
    expected = [naive.p(token, context) for token in range(VOCAB)]
    assert probabilities(trained(sequences, order), history) == pytest.approx(expected, rel=1e-9)


def test_what_was_seen_is_likelier_and_a_longer_order_fits_training_text_better() -> None:
    text = [EOS, *([1, 2, 3, 4, 5, 3] * 20)]
    losses = [trained([text], order).nats(np.array(text))[1:].mean() for order in range(1, 6)]
    assert all(shorter > longer for shorter, longer in pairwise(losses[:3]))
    assert probabilities(trained([text], 3), [1, 2])[3] > 0.9


def test_history_ends_at_documents_and_sequences() -> None:
    sequences = [np.array([5, EOS, 4, 3]), np.array([2, 1]), np.array([EOS]), np.array([3])]
    assert history_lengths(sequences, EOS).tolist() == [0, 1, 1, 2, 0, 1, 0, 0]


def test_a_document_is_scored_the_same_whatever_stands_before_it() -> None:
    model = trained([[EOS, 1, 2, 3, EOS, 2, 2, 1, EOS]], 3)
    alone = model.nats(np.array([EOS, 2, 3, 1]))[1:]
    after = model.nats(np.array([EOS, 4, 1, 2, EOS, 2, 3, 1]))[5:]
    assert alone.tolist() == after.tolist()


def test_counting_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no training tokens"):
        trained([], 2)
