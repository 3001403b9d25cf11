"""Byte-level BPE over UTF-8, compiled: what `tokenizers` does for `SPLIT_PATTERN`, about 15 times as fast.

The text is cut by the pattern, written out below as plain code over character classes. A word (what lies
between two cuts) is looked up among the words met before; a new one is merged pair by pair and remembered.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what is compiled; the public functions state them

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from lmlab.core import environ

# Set before the first @compiled, so that worker processes load what another one compiled.
vars(numba.config)["CACHE_DIR"] = str(environ.cache_dir() / "numba")
compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(cache=True, nogil=True)

OTHER, LETTER, NUMBER, NEWLINE, SPACE = 0, 1, 2, 3, 4  # LETTER: \p{L} and \p{M}; SPACE: \s but \r and \n
SHORT_WORD = 256  # bytes; up to here looking through all pairs at each merge beats keeping them in a heap
LONGEST_KEPT = 64  # bytes; longer words hardly ever come twice
WORDS = 1 << 16
SLOTS = WORDS * 4
KEPT_BYTES = WORDS * 16
PLACE_BITS = 40  # of a heap entry: rank << PLACE_BITS | place in the word

APOSTROPHE, BLANK = 0x27, 0x20
LINE_FEED, CARRIAGE_RETURN = 0x0A, 0x0D
NO_RANK = np.int64(1 << 62)
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
PAIR_MIX = np.uint64(0x9E3779B97F4A7C15)


class Merges(NamedTuple):
    """What a tokenizer knows; read only."""

    classes: NDArray[np.uint8]
    """Class of every code point."""
    byte_ids: NDArray[np.uint32]
    """Id of every single byte."""
    pair_keys: NDArray[np.int64]
    """Hash table of left id << 32 | right id; -1 is free. Its size is a power of two."""
    pair_ranks: NDArray[np.int64]
    """Rank of the pair in the same slot; the lowest is merged first."""
    merged: NDArray[np.uint32]
    """By rank, the id that the pair becomes."""


class Words(NamedTuple):
    """Words met before, with their ids. Grows until it is full, then stays; one for each thread."""

    slots: NDArray[np.int32]
    """Hash table of word numbers; -1 is free."""
    hashes: NDArray[np.uint64]
    spans: NDArray[np.int64]
    """A row for each word: first and last+1 place in `text`, first and last+1 in `ids`."""
    text: NDArray[np.uint8]
    ids: NDArray[np.uint32]
    used: NDArray[np.int64]
    """How many words, places of `text` and places of `ids` are taken."""


def empty_words() -> Words:
    """No words yet; 12 MB."""
    return Words(
        slots=np.full(SLOTS, -1, np.int32),
        hashes=np.zeros(WORDS, np.uint64),
        spans=np.zeros((WORDS, 4), np.int64),
        text=np.zeros(KEPT_BYTES, np.uint8),
        ids=np.zeros(KEPT_BYTES, np.uint32),
        used=np.zeros(3, np.int64),
    )


@compiled
def encode_pieces(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    merges: Merges,
    words: Words,
    out: NDArray[np.uint32],
    out_ends: NDArray[np.int64],
) -> None:
    """Encode pieces of valid UTF-8 that lie end to end in `data` into `out` (as long as `data`).

    `ends` are where the pieces end in `data`; `out_ends[i]` becomes the end of piece i in `out`.
    """
    start = written = np.int64(0)
    for piece in range(len(ends)):
        written = _encode_piece(data, start, ends[piece], merges, words, out, written)
        out_ends[piece] = written
        start = ends[piece]


@compiled
def _encode_piece(data, start, stop, merges, words, out, written):
    """Encode data[start:stop] to out[written:]; the new end."""
    ids, ranks = np.empty(SHORT_WORD, np.uint32), np.empty(SHORT_WORD, np.int64)
    # Fields are taken out once: numba counts references at each look at a tuple's array (5 times slower).
    classes, byte_ids = merges.classes, merges.byte_ids
    slots, hashes, spans, text, kept = words.slots, words.hashes, words.spans, words.text, words.ids
    while start < stop:
        end = _word_end(data, start, stop, classes)
        if end - start == 1:
            out[written] = byte_ids[data[start]]
            start, written = end, written + 1
            continue
        hashed = _hash(data, start, end)
        slot = np.int64((hashed ^ (hashed >> np.uint64(32))) & np.uint64(SLOTS - 1))
        word = slots[slot]
        while word >= 0 and not (hashes[word] == hashed and _is_same(data, start, end, text, spans[word])):
            slot = (slot + 1) & (SLOTS - 1)
            word = slots[slot]
        if word >= 0:
            for place in range(spans[word, 2], spans[word, 3]):
                out[written] = kept[place]
                written += 1
        elif end - start > SHORT_WORD:
            written = _merge_long(data, start, end, merges, out, written)
        else:
            count = _merge(data, start, end, merges, ids, ranks)
            out[written : written + count] = ids[:count]
            written += count
            _remember(data, start, end, words, slot, hashed, ids[:count])
        start = end
    return written


@compiled
def _hash(data, start, end):
    hashed = FNV_START
    for place in range(start, end):
        hashed = (hashed ^ np.uint64(data[place])) * FNV_PRIME
    return hashed


@compiled
def _is_same(data, start, end, text, span):
    if span[1] - span[0] != end - start:
        return False
    for offset in range(end - start):  # noqa: SIM110 - numba compiles no generator expressions
        if data[start + offset] != text[span[0] + offset]:
            return False
    return True


@compiled
def _remember(data, start, end, words, slot, hashed, ids):
    word, text, kept = words.used[0], words.used[1], words.used[2]
    if end - start > LONGEST_KEPT or word == WORDS or text + LONGEST_KEPT > KEPT_BYTES:
        return
    text_end, kept_end = text + end - start, kept + len(ids)
    words.text[text:text_end] = data[start:end]
    words.ids[kept:kept_end] = ids
    words.spans[word, 0], words.spans[word, 1] = text, text_end
    words.spans[word, 2], words.spans[word, 3] = kept, kept_end
    words.hashes[word], words.slots[slot] = hashed, word
    words.used[0], words.used[1], words.used[2] = word + 1, text_end, kept_end


@compiled
def _merge(data, start, end, merges, ids, ranks):
    """Merge the pair of lowest rank, the leftmost first, until none is left; the count of ids."""
    count = end - start
    for place in range(count):
        ids[place] = merges.byte_ids[data[start + place]]
    for place in range(count - 1):
        ranks[place] = _rank(ids[place], ids[place + 1], merges)
    while count > 1:
        best, at = NO_RANK, 0
        for place in range(count - 1):
            if ranks[place] < best:
                best, at = ranks[place], place
        if best == NO_RANK:
            break
        ids[at] = merges.merged[best]
        count -= 1
        for place in range(at + 1, count):
            ids[place] = ids[place + 1]
            ranks[place] = ranks[place + 1]
        if at > 0:
            ranks[at - 1] = _rank(ids[at - 1], ids[at], merges)
        if at < count - 1:
            ranks[at] = _rank(ids[at], ids[at + 1], merges)
    return count


@compiled
def _merge_long(data, start, end, merges, out, written):
    """The same for a word of any length, with the pairs in a heap: n log n instead of n²; the new end."""
    count = end - start
    ids = np.empty(count, np.uint32)
    for place in range(count):
        ids[place] = merges.byte_ids[data[start + place]]
    before, after = np.arange(-1, count - 1), np.arange(1, count + 1)
    heap = [np.int64(0) for _ in range(0)]
    for place in range(count - 1):
        _push_pair(heap, ids, place, place + 1, merges)
    while heap:
        lowest = heappop(heap)
        rank, left = lowest >> PLACE_BITS, lowest & ((1 << PLACE_BITS) - 1)
        right = after[left]
        if right >= count or right < 0 or _rank(ids[left], ids[right], merges) != rank:
            continue  # one of the two was merged meanwhile
        ids[left] = merges.merged[rank]
        after[left], after[right] = after[right], -1
        if after[left] < count:
            before[after[left]] = left
            _push_pair(heap, ids, left, after[left], merges)
        if before[left] >= 0:
            _push_pair(heap, ids, before[left], left, merges)
    place = np.int64(0)
    while place < count:
        out[written] = ids[place]
        written += 1
        place = after[place]
    return written


@compiled
def _push_pair(heap, ids, left, right, merges):
    rank = _rank(ids[left], ids[right], merges)
    if rank != NO_RANK:
        heappush(heap, rank << PLACE_BITS | left)


@compiled
def _rank(left, right, merges):
    key = np.int64(left) << np.int64(32) | np.int64(right)
    last = len(merges.pair_keys) - 1
    slot = _pair_slot(key, last)
    while merges.pair_keys[slot] >= 0:
        if merges.pair_keys[slot] == key:
            return merges.pair_ranks[slot]
        slot = (slot + 1) & last
    return NO_RANK


@compiled
def fill_pairs(pairs: NDArray[np.int64], pair_keys: NDArray[np.int64], pair_ranks: NDArray[np.int64]) -> None:
    """Put the pairs, whose rank is their place, into an empty hash table."""
    last = len(pair_keys) - 1
    for rank in range(len(pairs)):
        slot = _pair_slot(pairs[rank], last)
        while pair_keys[slot] >= 0 and pair_keys[slot] != pairs[rank]:
            slot = (slot + 1) & last
        pair_keys[slot], pair_ranks[slot] = pairs[rank], rank


@compiled
def _pair_slot(key, last):
    return np.int64((np.uint64(key) * PAIR_MIX) >> np.uint64(32)) & last


@compiled
def _word_end(data, start, stop, classes):
    """Where the word that begins at `start` ends: SPLIT_PATTERN's alternatives in their order."""
    kind, width = _character(data, start, classes)
    after = start + width
    if data[start] == APOSTROPHE:
        end = _contraction_end(data, after, stop)
        if end > after:
            return end
    if kind == LETTER:
        return _run_end(data, after, stop, LETTER, classes)
    if kind == NUMBER:
        return _number_end(data, after, stop, classes)
    following = _character(data, after, classes)[0] if after < stop else SPACE
    if following == LETTER and kind != NEWLINE:
        return _run_end(data, after, stop, LETTER, classes)
    if kind == OTHER or (data[start] == BLANK and following == OTHER):
        end = _run_end(data, after, stop, OTHER, classes)
        while end < stop and (data[end] == LINE_FEED or data[end] == CARRIAGE_RETURN):
            end += 1
        return end
    return _white_end(data, start, stop, classes)


@compiled
def _contraction_end(data, start, stop):
    """After s, t, m, d, re, ve or ll in any case (the long s folds to s too); `start` for anything else."""
    if start >= stop:
        return start
    first = data[start] | 0x20
    if first == ord("s") or first == ord("t") or first == ord("m") or first == ord("d"):
        return start + 1
    if start + 1 >= stop:
        return start
    second = data[start + 1] | 0x20
    if (first == ord("r") or first == ord("v")) and second == ord("e"):
        return start + 2
    if first == ord("l") and second == ord("l"):
        return start + 2
    if data[start] == 0xC5 and data[start + 1] == 0xBF:
        return start + 2
    return start


@compiled
def _run_end(data, start, stop, kind, classes):
    while start < stop:
        found, width = _character(data, start, classes)
        if found != kind:
            break
        start += width
    return start


@compiled
def _number_end(data, start, stop, classes):
    for _ in range(2):
        if start < stop:
            kind, width = _character(data, start, classes)
            if kind == NUMBER:
                start += width
            else:
                break
    return start


@compiled
def _white_end(data, start, stop, classes):
    """Up to the last line break of the run; without one, all but the blank that belongs to the next word."""
    end, last, after_break = start, start, start
    while end < stop:
        kind, width = _character(data, end, classes)
        if kind != SPACE and kind != NEWLINE:
            break
        last = end
        end += width
        if kind == NEWLINE:
            after_break = end
    if after_break > start:
        return after_break
    return end if end == stop or last == start else last


@compiled
def _character(data, at, classes):
    """Class and width in bytes of the character at `at`."""
    first = np.int64(data[at])
    if first < 0x80:
        return classes[first], 1
    if first < 0xE0:
        return classes[(first & 0x1F) << 6 | data[at + 1] & 0x3F], 2
    if first < 0xF0:
        return classes[(first & 0x0F) << 12 | (data[at + 1] & 0x3F) << 6 | data[at + 2] & 0x3F], 3
    point = (
        (first & 0x07) << 18 | (data[at + 1] & 0x3F) << 12 | (data[at + 2] & 0x3F) << 6 | data[at + 3] & 0x3F
    )
    return classes[point], 4
