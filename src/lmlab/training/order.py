"""The order in which text is read: permutations and mixtures as pure functions of (seed, index).

Nothing here keeps state, so position in the data is an integer, resuming is free, and any process can
compute any part of the order. All functions take and return whole numpy arrays.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import ConfigError

Indexes = NDArray[np.int64]

_64_BITS = (1 << 64) - 1
ROUNDS = 8
IO_BLOCK = 256
"""Neighbouring examples that are read together: full blocks are permuted as wholes…"""
WINDOW_BLOCKS = 512
"""…and then the examples inside each window of that many blocks."""


def key_of(*parts: int) -> int:
    """One 64-bit key from a seed and the names of its use (murmur's finalizer): uses share nothing."""
    key = 0x9E3779B97F4A7C15
    for part in parts:
        key ^= part & _64_BITS
        key = ((key ^ (key >> 33)) * 0xFF51AFD7ED558CCD) & _64_BITS
        key = ((key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53) & _64_BITS
        key ^= (key >> 33) ^ 0x2545F4914F6CDD1D
    return key


def permute(index: Indexes, size: int, key: int) -> Indexes:
    """Where a pseudo-random permutation of range(size) sends `index`: a Feistel network, walked until inside.

    Each round hashes one half with murmur, because a round that is linear mod 2^k leaks low bits
    (marin's does). 1 M indexes take 0.02 to 0.06 s.

    >>> sorted(permute(np.arange(10), 10, key=7).tolist()) == list(range(10))
    True
    """
    if size < 2:
        return np.zeros_like(index)
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    keys = [np.uint32(key_of(key, turn) & 0xFFFFFFFF) for turn in range(ROUNDS)]
    values = _feistel(index.astype(np.uint64), half, keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        walked = _feistel(values[outside], half, keys)
        values[outside] = walked
        outside = outside[walked >= size]
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: np.uint64, keys: Sequence[np.uint32]) -> NDArray[np.uint64]:
    mask = np.uint32((1 << int(half)) - 1)
    left, right = (values >> half).astype(np.uint32), (values & np.uint64(mask)).astype(np.uint32)
    for key in keys:
        left, right = right, left ^ (_hash32(right ^ key) & mask)
    return (left.astype(np.uint64) << half) | right


def _hash32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    # In place: the arrays are the function's own, and three quarters of the time went to new ones.
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def block_shuffle(index: Indexes, size: int, key: int) -> Indexes:
    """Which example of a source of `size` stands at place `index` of its shuffled order, epoch after epoch.

    Full blocks of neighbours are permuted over the source, then examples inside each window of blocks, so a
    read from slow storage fetches neighbours and memory stays bounded. The partial block at the end of the
    source stays last (shuffled in itself). Each epoch has another order.
    """
    result = np.empty_like(index)
    epochs = index // size
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        result[chosen] = _one_epoch(index[chosen] % size, size, key_of(key, int(epoch)))
    return result


def _one_epoch(index: Indexes, size: int, key: int) -> Indexes:
    blocks = size // IO_BLOCK
    whole = blocks * IO_BLOCK
    result = np.empty_like(index)
    tail = index >= whole
    result[tail] = whole + permute(index[tail] - whole, size - whole, key_of(key, -1))
    windows = index // (IO_BLOCK * WINDOW_BLOCKS)
    for window in np.unique(windows[~tail]):
        chosen = ~tail & (windows == window)
        first = int(window) * WINDOW_BLOCKS
        length = min(WINDOW_BLOCKS, blocks - first) * IO_BLOCK
        place = permute(index[chosen] - first * IO_BLOCK, length, key_of(key, int(window)))
        block = permute(first + place // IO_BLOCK, blocks, key_of(key, -2))
        result[chosen] = block * IO_BLOCK + place % IO_BLOCK
    return result


def exact_counts(weights: Sequence[float], block: int) -> list[int]:
    """How many of `block` sequences each source gets: shares rounded down, the rest to the largest rests.

    >>> exact_counts([0.5, 0.3, 0.2], 8)
    [4, 2, 2]
    """
    total = sum(weights)
    if not total > 0:
        raise ConfigError(
            "the weights of the mixture sum to 0, so no text would be drawn. Give one a weight."
        )
    shares = [weight / total * block for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
    for i in by_remainder[: block - sum(counts)]:
        counts[i] += 1
    return counts


def mixture(index: Indexes, counts: Sequence[int], key: int) -> tuple[Indexes, Indexes]:
    """For each place of the whole order: which source is read, and which place in that source's own order.

    Among every sum(counts) places each source stands exactly counts[source] times, in an order that differs
    from block to block.
    """
    block = sum(counts)
    slots = np.repeat(np.arange(len(counts)), counts)
    sources, places = np.empty_like(index), np.empty_like(index)
    per_source = np.asarray(counts, dtype=np.int64)
    for number in np.unique(index // block):
        chosen = index // block == number
        order = slots[permute(np.arange(block), block, key_of(key, int(number)))]
        inside = index[chosen] % block
        sources[chosen] = order[inside]
        places[chosen] = number * per_source[order[inside]] + _rank_among_equals(order)[inside]
    return sources, places


def _rank_among_equals(order: Indexes) -> Indexes:
    """For each element, how many equal ones stand before it."""
    by_value = np.argsort(order, kind="stable")
    starts = np.searchsorted(order[by_value], order[by_value], side="left")
    ranks = np.empty_like(order)
    ranks[by_value] = np.arange(order.size) - starts
    return ranks
