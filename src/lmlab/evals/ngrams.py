"""An interpolated modified Kneser-Ney n-gram model over token ids, in sorted arrays.

A gram of order k is named by a number: its rank among the sorted keys `name of its first k-1 tokens * vocab +
its last token`. So an order is one sort, a lookup one binary search, and nothing is hashed or approximated.

    p_k(w | h) = max(a(h w) - D_k(a(h w)), 0) / a(h .) + gamma_k(h) p_{k-1}(w | h without its first token)

a() is the count for the highest order and for grams that begin at a document's start; below, it is the number
of different tokens seen before the gram. p_0 is uniform: every token has a probability, and they sum to one.
Source: Chen and Goodman, "An empirical study of smoothing techniques" (1999), section 3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from lmlab.core.errors import InputError

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # KenLM's, for an order whose counts of counts have gaps


@dataclass(frozen=True)
class Order:
    """All grams of one order, sorted by key, and what their histories leave to the order below."""

    keys: Int[np.ndarray, " grams"]
    """Name of the history * vocab + last token, ascending."""
    own: Float[np.ndarray, " grams"]
    """(a - D(a)) / a(history .): the part of the probability that this order gives itself."""
    gamma: Float[np.ndarray, " histories"]
    """The part it leaves to the order below, by the history's name; 1 where nothing was seen after it."""


@dataclass(frozen=True)
class NgramModel:
    """A trained model over at most `len(orders)` tokens; `vocab` and `eos_id` as in the token store."""

    vocab: int
    eos_id: int
    orders: tuple[Order, ...]
    tokens: int
    """How many tokens it was trained on."""

    def nats(self, sequence: Integer[np.ndarray, " tokens"]) -> Float[np.ndarray, " tokens"]:
        """-log p of every token given those before it in `sequence`, back to the last end-of-document id.

        A document is scored from its start when an end-of-document id stands before it.
        """
        tokens = sequence.astype(np.int64)
        reach = history_lengths([sequence], self.eos_id)
        names, p = np.zeros(len(tokens), np.int64), np.full(len(tokens), 1.0 / self.vocab)
        for k, order in enumerate(self.orders, 1):
            history = _histories(names, reach, k)
            keys = history * self.vocab + tokens
            names = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            is_seen = (history >= 0) & (order.keys[names] == keys)
            p = (
                np.where(is_seen, order.own[names], 0.0)
                + np.where(history >= 0, order.gamma[history], 1.0) * p
            )
            names = np.where(is_seen, names, -1)
        return -np.log(p)


def train_ngrams(
    sequences: Iterable[Integer[np.ndarray, " _"]], *, vocab: int, eos_id: int, order: int
) -> NgramModel:
    """Count the sequences (no gram crosses their borders or a document's end) and smooth the counts."""
    parts = [np.asarray(sequence) for sequence in sequences]
    if not sum(map(len, parts)):
        raise InputError(
            "there are no training tokens, so an n-gram baseline has nothing to count. Check the run."
        )
    tokens = np.concatenate(parts).astype(np.int64)
    reach = history_lengths(parts, eos_id)
    names, grams = tokens, [_unigrams(tokens, vocab)]
    for k in range(2, order + 1):
        names, counted = _count(tokens, names, reach, k, vocab, eos_id)
        grams.append(counted)
    sizes = [1, *(len(counted.keys) for counted in grams)]
    orders = (
        _smooth(counted, above, vocab, histories)
        for (counted, above), histories in zip(pairwise([*grams, None]), sizes, strict=False)
        if counted is not None and len(counted.keys)  # short sequences may have no gram so long
    )
    return NgramModel(vocab, eos_id, tuple(orders), len(tokens))


def history_lengths(
    sequences: Sequence[Integer[np.ndarray, " _"]], eos_id: int
) -> Int[np.ndarray, " tokens"]:
    """How many tokens before each token may be its history: those from its sequence's start or from the last
    end-of-document id before it, that id included, whichever is nearer."""
    left = np.zeros(sum(map(len, sequences)) + 1, np.int64)
    start = 0
    for sequence in sequences:
        ends = start + np.flatnonzero(sequence == eos_id)
        left[ends + 1] = ends
        left[start] = start
        start += len(sequence)
    return np.arange(start) - np.maximum.accumulate(left[:-1])


@dataclass(frozen=True)
class _Grams:
    """The different grams of one order, before smoothing."""

    keys: Int[np.ndarray, " grams"]
    counts: Int[np.ndarray, " grams"]
    suffixes: Int[np.ndarray, " grams"]
    """Name, one order below, of the gram without its first token."""
    begins_document: Bool[np.ndarray, " grams"]


def _unigrams(tokens: Int[np.ndarray, " tokens"], vocab: int) -> _Grams:
    every = np.arange(vocab)
    return _Grams(every, np.bincount(tokens, minlength=vocab), np.zeros_like(every), np.zeros(vocab, bool))


def _count(
    tokens: Int[np.ndarray, " tokens"],
    shorter: Int[np.ndarray, " tokens"],
    reach: Int[np.ndarray, " tokens"],
    k: int,
    vocab: int,
    eos_id: int,
) -> tuple[Int[np.ndarray, " tokens"], _Grams]:
    """The grams of order k, and their names by the position of their last token (-1 where none ends).

    `shorter` are the names of order k-1."""
    history = _histories(shorter, reach, k)
    places = np.flatnonzero(history >= 0)
    keys = history[places] * vocab + tokens[places]
    ranking = np.argsort(keys)
    keys, places = keys[ranking], places[ranking]
    is_new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    names = np.full(len(tokens), -1)
    names[places] = np.cumsum(is_new) - 1
    first = places[is_new]
    counts = np.diff(np.append(np.flatnonzero(is_new), len(keys)))
    return names, _Grams(keys[is_new], counts, shorter[first], tokens[first - k + 1] == eos_id)


def _histories(
    shorter: Int[np.ndarray, " tokens"], reach: Int[np.ndarray, " tokens"], k: int
) -> Int[np.ndarray, " tokens"]:
    """The name of the k-1 tokens before each position, -1 where so many are not there or were not seen."""
    if k == 1:
        return np.zeros_like(reach)
    before = np.concatenate([[-1], shorter[:-1]])
    return np.where(reach >= k - 1, before, -1)


def _smooth(grams: _Grams, above: _Grams | None, vocab: int, histories: int) -> Order:
    """Turn counts into the two arrays of `Order`; `above` are the grams one token longer."""
    adjusted = grams.counts
    if above is not None:
        extensions = np.bincount(above.suffixes, minlength=len(grams.keys))
        adjusted = np.where(grams.begins_document, grams.counts, extensions)
    discount = np.array([0.0, *_discounts(adjusted)])[np.minimum(adjusted, 3)]
    history = grams.keys // vocab
    total = np.bincount(history, weights=adjusted, minlength=histories)
    divisor = np.maximum(total, 1.0)  # where nothing follows a history, its numerators are 0 too
    gamma = np.where(total > 0, np.bincount(history, weights=discount, minlength=histories) / divisor, 1.0)
    return Order(grams.keys, (adjusted - discount) / divisor[history], gamma)


def _discounts(adjusted: Int[np.ndarray, " grams"]) -> tuple[float, float, float]:
    """What is taken from grams counted once, twice, and more often (Chen and Goodman, equation 26)."""
    n1, n2, n3, n4 = (int(np.count_nonzero(adjusted == count)) for count in (1, 2, 3, 4))
    if min(n1, n2, n3) == 0:
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 <= value <= most for most, value in enumerate(found, 1)) else FALLBACK_DISCOUNTS
