"""The order of the text: permutations, shuffles and mixtures."""

import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import ConfigError
from lmlab.training import order


@pytest.mark.parametrize("sizes", [range(1, 700), [5000], [10**6 + 3], [2**20]])
def test_permutation_is_bijective(sizes: list[int]) -> None:
    for size in sizes:
        image = order.permute(np.arange(size), size, key=size * 7 + 1)
        assert np.array_equal(np.sort(image), np.arange(size))


def test_permutation_leaks_neither_low_bits_nor_neighbours() -> None:
    """A Feistel round that is linear mod 2^k passes the bijectivity test and fails this one (spec T26)."""
    size = 1 << 20
    index = np.arange(size)
    image = order.permute(index, size, key=11)
    for bit in range(4):
        for other in range(4):
            assert abs(np.corrcoef((index >> bit) & 1, (image >> other) & 1)[0, 1]) < 5 / np.sqrt(size)
    pairs = [(index, image), (image[:-1], image[1:])]
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(size) for a, b in pairs)
    # The four classes of two low input bits reach both output parities alike (marin's reach one each).
    shares = [(image[index % 4 == low] & 1).mean() for low in range(4)]
    assert np.allclose(shares, 0.5, atol=5 / np.sqrt(size / 4))


def test_all_orders_of_a_small_set_are_about_equally_likely() -> None:
    found = [tuple(order.permute(np.arange(4), 4, key)) for key in range(4800)]
    _, counts = np.unique(np.array(found), axis=0, return_counts=True)
    assert len(counts) == 24
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_a_million_indexes_take_less_than_a_fifth_of_a_second() -> None:
    started = time.process_time()
    order.permute(np.arange(10**6), 10**6, key=3)
    assert time.process_time() - started < 0.2


@given(size=st.integers(1, 3000), key=st.integers(0, 2**60))
@settings(max_examples=40, deadline=None)
def test_each_epoch_reads_every_example_once_in_its_own_order(size: int, key: int) -> None:
    places = np.arange(2 * size)
    examples = order.block_shuffle(places, size, key)
    first, second = examples[:size], examples[size:]
    assert np.array_equal(np.sort(first), np.arange(size))
    assert np.array_equal(np.sort(second), np.arange(size))
    if size > 20:
        assert not np.array_equal(first, second)


def test_the_partial_block_at_the_end_of_a_source_stays_last() -> None:
    size = 5 * order.IO_BLOCK + 17
    examples = order.block_shuffle(np.arange(size), size, key=5)
    assert examples[-17:].min() >= 5 * order.IO_BLOCK


def test_a_window_reads_only_its_own_blocks() -> None:
    size = (order.WINDOW_BLOCKS + 40) * order.IO_BLOCK
    window = order.WINDOW_BLOCKS * order.IO_BLOCK
    blocks = order.block_shuffle(np.arange(size), size, key=2) // order.IO_BLOCK
    assert len(np.unique(blocks[:window])) == order.WINDOW_BLOCKS
    assert len(np.unique(blocks[window:])) == 40


@given(
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3),
    block=st.integers(1, 300),
)
@settings(deadline=None)
def test_counts_add_up_and_are_within_one_of_the_share(weights: list[float], block: int) -> None:
    counts = order.exact_counts(weights, block)
    assert sum(counts) == block
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - weight / sum(weights) * block) < 1 + 1e-6


def test_weights_that_sum_to_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="sum to 0"):
        order.exact_counts([0.0, 0.0], 16)


def test_every_block_holds_each_source_exactly_and_places_run_on() -> None:
    counts = [5, 0, 8, 3]
    which, places = order.mixture(np.arange(16 * 50), counts, key=9)
    for block in which.reshape(50, 16):
        assert np.bincount(block, minlength=4).tolist() == counts
    for source, count in enumerate(counts):
        assert places[which == source].tolist() == list(range(50 * count))
    assert not np.array_equal(which[:16], which[16:32])


@given(start=st.integers(0, 500), length=st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_any_stretch_of_the_mixture_equals_that_part_of_the_whole(start: int, length: int) -> None:
    counts = [7, 2, 4]
    whole = order.mixture(np.arange(600), counts, key=1)
    part = order.mixture(np.arange(start, start + length), counts, key=1)
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[start : start + length], b)
