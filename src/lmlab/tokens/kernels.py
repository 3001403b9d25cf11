"""Byte-level BPE over UTF-8, compiled: what `tokenizers` does, many times as fast.

The text is cut by `_word_end`, which is the patterns of `patterns.py` written out over classes of characters.
A word (what lies between two cuts) is looked up among those met before; a new one is merged and remembered.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what is compiled; the public functions state them

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmlab.corpus.kernels import compiled

# What a character may be; several at once. \p{Lo} is UPPER and LOWER, a line break is SPACE and BREAK.
UPPER, LOWER, NUMBER, SPACE, BREAK, OTHER = 1, 2, 4, 8, 16, 32
LETTER = UPPER | LOWER
SHORT_WORD = 256  # bytes; up to here looking through all pairs at each merge beats keeping them in a heap
LONGEST_KEPT = 64  # bytes; longer words hardly ever come twice
WORDS, WORD_BYTES = 1 << 16, 1 << 20  # 12 MB for each thread
PLACE_BITS = 40  # of a heap entry: rank << PLACE_BITS | place in the word

APOSTROPHE, BLANK, SLASH, CASE_BIT = 0x27, 0x20, 0x2F, 0x20
LINE_FEED, CARRIAGE_RETURN = 0x0A, 0x0D
NO_RANK, NO_ID = np.int64(1 << 62), np.uint32(0xFFFFFFFF)
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
PAIR_MIX = np.uint64(0x9E3779B97F4A7C15)


class Rules(NamedTuple):
    """In what the patterns differ beside the classes of characters."""

    digits: int
    """Longest run of digits in one word."""
    is_gpt2: bool
    """Nothing but a blank stands before a word, numbers included; endings are small letters."""
    splits_case: bool
    """A word ends where capitals begin, and takes an ending ('ll); slashes may follow line breaks."""
    digits_first: bool
    """To the rest of the pattern the text ends at a digit."""


class Words(NamedTuple):
    """Words with their ids, found by hash. Grows until it is full, then stays."""

    slots: NDArray[np.int32]
    """Hash table of word numbers; -1 is free. Its size is a power of two."""
    hashes: NDArray[np.uint64]
    spans: NDArray[np.int64]
    """A row for each word: first and last+1 place in `text`, first and last+1 in `ids`."""
    text: NDArray[np.uint8]
    ids: NDArray[np.uint32]
    used: NDArray[np.int64]
    """How many words, places of `text` and places of `ids` are taken."""


class Merges(NamedTuple):
    """What a tokenizer knows; read only."""

    rules: Rules
    classes: NDArray[np.uint8]
    """Class of every code point."""
    byte_ids: NDArray[np.uint32]
    """Id of every single byte; NO_ID for one that the vocabulary lacks, which is left out of the text."""
    pair_keys: NDArray[np.int64]
    """Hash table of left id << 32 | right id; -1 is free. Its size is a power of two."""
    pair_ranks: NDArray[np.int64]
    """Rank of the pair in the same slot; the lowest is merged first."""
    merged: NDArray[np.uint32]
    """By rank, the id that the pair becomes."""
    vocabulary: Words
    """Words that have an id of their own whatever the merges (`ignore_merges`); else none."""


def empty_words(count: int = WORDS, size_bytes: int = WORD_BYTES) -> Words:
    """No words yet, and place for `count` of `size_bytes` together."""
    return Words(
        slots=np.full(1 << (4 * count).bit_length(), -1, np.int32),
        hashes=np.zeros(count, np.uint64),
        spans=np.zeros((count, 4), np.int64),
        text=np.zeros(size_bytes, np.uint8),
        ids=np.zeros(size_bytes, np.uint32),
        used=np.zeros(3, np.int64),
    )


@compiled
def fill_words(
    data: NDArray[np.uint8], ends: NDArray[np.int64], ids: NDArray[np.uint32], words: Words
) -> None:
    """Put different words that lie end to end in `data`, each with one id, into `words`."""
    start = np.int64(0)
    for word in range(len(ends)):
        hashed = _hash(data, start, ends[word])
        slot, _ = _find(data, start, ends[word], hashed, words)
        _remember(data, start, ends[word], words, slot, hashed, ids[word : word + 1])
        start = ends[word]


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
    classes, byte_ids, rules, vocabulary = merges.classes, merges.byte_ids, merges.rules, merges.vocabulary
    slots, hashes, spans, text, kept = words.slots, words.hashes, words.spans, words.text, words.ids
    last = len(slots) - 1
    while start < stop:
        end = _word_end(data, start, stop, classes, rules)
        if end - start == 1 and byte_ids[data[start]] != NO_ID:
            out[written] = byte_ids[data[start]]
            start, written = end, written + 1
            continue
        hashed = _hash(data, start, end)
        slot = np.int64(hashed ^ (hashed >> np.uint64(32))) & last
        word = slots[slot]
        while word >= 0 and not (hashes[word] == hashed and _is_same(data, start, end, text, spans[word])):
            slot = (slot + 1) & last
            word = slots[slot]
        if word >= 0:
            for place in range(spans[word, 2], spans[word, 3]):
                out[written] = kept[place]
                written += 1
        elif end - start > SHORT_WORD:
            written = _merge_long(data, start, end, merges, out, written)
        else:
            known = _find(data, start, end, hashed, vocabulary)[1]
            count = 1
            if known >= 0:
                ids[0] = vocabulary.ids[known]
            else:
                count = _merge(data, start, end, merges, ids, ranks)
            out[written : written + count] = ids[:count]
            written += count
            if end - start <= LONGEST_KEPT:
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
def _find(data, start, end, hashed, words):
    """The slot where a word stands or may be put, and its number; -1 for none."""
    last = len(words.slots) - 1
    slot = np.int64(hashed ^ (hashed >> np.uint64(32))) & last
    word = words.slots[slot]
    while word >= 0:
        if words.hashes[word] == hashed and _is_same(data, start, end, words.text, words.spans[word]):
            break
        slot = (slot + 1) & last
        word = words.slots[slot]
    return slot, word


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
    text_end, kept_end = text + end - start, kept + len(ids)
    if word == len(words.hashes) or text_end > len(words.text):  # never more ids than bytes
        return
    words.text[text:text_end] = data[start:end]
    words.ids[kept:kept_end] = ids
    words.spans[word, 0], words.spans[word, 1] = text, text_end
    words.spans[word, 2], words.spans[word, 3] = kept, kept_end
    words.hashes[word], words.slots[slot] = hashed, word
    words.used[0], words.used[1], words.used[2] = word + 1, text_end, kept_end


@compiled
def _merge(data, start, end, merges, ids, ranks):
    """Merge the pair of lowest rank, the leftmost first, until none is left; the count of ids."""
    count = _put_bytes(data, start, end, merges, ids)
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
def _put_bytes(data, start, end, merges, ids):
    """The ids of single bytes; how many."""
    count = 0
    for place in range(start, end):
        ids[count] = merges.byte_ids[data[place]]
        count += ids[count] != NO_ID
    return count


@compiled
def _merge_long(data, start, end, merges, out, written):
    """The same for a word of any length, with the pairs in a heap: n log n instead of n²; the new end."""
    ids = np.empty(end - start, np.uint32)
    count = _put_bytes(data, start, end, merges, ids)
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
def _word_end(data, start, stop, classes, rules):
    """Where the word that begins at `start` ends: the pattern's alternatives in their order."""
    kind, width = _character(data, start, classes)
    after, is_blank = start + width, data[start] == BLANK
    if not rules.splits_case:
        end = _ending_end(data, start, stop, rules)
        if end > start:
            return end
    if kind & LETTER:
        return _letters_end(data, start, stop, classes, rules)
    if kind & NUMBER:
        return _numbers_end(data, start, stop, classes, rules)
    following = _character(data, after, classes)[0] if after < stop else SPACE
    if following & LETTER and (is_blank or not (rules.is_gpt2 or kind & BREAK)):
        return _letters_end(data, after, stop, classes, rules)
    if following & NUMBER and is_blank and rules.is_gpt2 and not rules.digits_first:
        return _numbers_end(data, after, stop, classes, rules)
    if kind & OTHER or (is_blank and following & OTHER):
        end = _run_end(data, after, stop, OTHER, classes)
        while end < stop and not rules.is_gpt2 and _may_follow_others(data[end], rules):
            end += 1
        return end
    return _white_end(data, start, stop, classes, rules)


@compiled
def _may_follow_others(byte, rules):
    return byte in (LINE_FEED, CARRIAGE_RETURN) or (byte == SLASH and rules.splits_case)


@compiled
def _letters_end(data, start, stop, classes, rules):
    """After capitals and the small letters behind them; with none, after the last letter that is both."""
    end = both = start
    kind, width = _character(data, end, classes)
    while kind & UPPER:
        end += width
        if kind & LOWER:
            both = end
        if end == stop:
            break
        kind, width = _character(data, end, classes)
    if end < stop and kind & LOWER:
        end = _run_end(data, end, stop, LOWER, classes)
    elif both > start:
        end = both
    return _ending_end(data, end, stop, rules) if rules.splits_case else end


@compiled
def _ending_end(data, start, stop, rules):
    """After 's, 't, 'm, 'd, 're, 've or 'll (in any case but for GPT-2); `start` for anything else."""
    if start + 1 >= stop or data[start] != APOSTROPHE:
        return start
    fold = 0 if rules.is_gpt2 else CASE_BIT
    first = data[start + 1] | fold
    if first == ord("s") or first == ord("t") or first == ord("m") or first == ord("d"):
        return start + 2
    if start + 2 >= stop:
        return start
    second = data[start + 2] | fold
    is_ending = (first == ord("r") or first == ord("v")) and second == ord("e")
    is_ending |= first == ord("l") and second == ord("l")
    is_ending |= not rules.is_gpt2 and data[start + 1] == 0xC5 and data[start + 2] == 0xBF  # the long s
    return start + 3 if is_ending else start


@compiled
def _run_end(data, start, stop, kinds, classes):
    while start < stop:
        kind, width = _character(data, start, classes)
        if not kind & kinds:
            break
        start += width
    return start


@compiled
def _numbers_end(data, start, stop, classes, rules):
    count = 0
    while start < stop and count < rules.digits:
        kind, width = _character(data, start, classes)
        if not kind & NUMBER:
            break
        start += width
        count += 1
    return start


@compiled
def _white_end(data, start, stop, classes, rules):
    """Up to the last line break of the run; without one, all but the blank that belongs to the next word."""
    end, last, after_break, kind = start, start, start, SPACE
    while end < stop:
        kind, width = _character(data, end, classes)
        if not kind & SPACE:
            break
        last = end
        end += width
        if kind & BREAK:
            after_break = end
    if after_break > start:
        return after_break
    is_whole = end == stop or last == start or (kind & NUMBER and rules.digits_first)
    return end if is_whole else last


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
