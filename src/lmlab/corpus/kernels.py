"""The loops over characters that Python is too slow for, compiled by numba once per machine.

All three read the UTF-8 bytes of many documents as Arrow lays them out (`data`, `offsets`), so no document is
copied or decoded by Python. `_clean` turns one document into cleaned codes; everything else counts codes.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers the types of what is compiled

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from lmlab.core import environ

# Set before the first @compiled: worker processes then load what another one compiled.
vars(numba.config)["CACHE_DIR"] = str(environ.cache_dir() / "numba")
compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(cache=True, nogil=True)

DROPPED, SPACE, BREAK = 0, 1, 2
"""Codes that stand for no letter: punctuation, one gap between words, a gap with a blank line."""
ALONE = np.uint32(1 << 31)
"""Marks a letter that is a word by itself: Han, kana, Thai … are written without spaces."""

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_RECENT = 1 << 14


@compiled
def _mixed(value):
    value = np.uint64(value)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


@compiled
def _clean(data, start, end, cap, classes, codes):
    """Codes of at most `cap` characters of data[start:end]; gaps collapsed and trimmed; how many."""
    count, gap, newlines, seen = 0, False, 0, 0
    position = start
    while position < end and seen < cap:
        byte = np.uint32(data[position])
        if byte < 0x80:
            point = byte
            position += 1
        elif byte < 0xE0:
            point = (byte & np.uint32(0x1F)) << np.uint32(6) | (data[position + 1] & np.uint32(0x3F))
            position += 2
        elif byte < 0xF0:
            point = (byte & np.uint32(0x0F)) << np.uint32(12)
            point |= (data[position + 1] & np.uint32(0x3F)) << np.uint32(6)
            point |= data[position + 2] & np.uint32(0x3F)
            position += 3
        else:
            point = (byte & np.uint32(0x07)) << np.uint32(18)
            point |= (data[position + 1] & np.uint32(0x3F)) << np.uint32(12)
            point |= (data[position + 2] & np.uint32(0x3F)) << np.uint32(6)
            point |= data[position + 3] & np.uint32(0x3F)
            position += 4
        seen += 1
        code = classes[point] if point < len(classes) else np.uint32(point | ALONE)
        if code > BREAK:
            if gap and count > 0:
                codes[count] = BREAK if newlines > 1 else SPACE
                count += 1
            gap, newlines = False, 0
            codes[count] = code
            count += 1
        elif code == SPACE:
            gap = True
            newlines += point == 10
    return count


@compiled
def _longest(offsets):
    longest = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


@compiled
def minhash_bands(data, offsets, classes, factors, addends, ngram, cap, bands):
    """Fill `bands` [documents, bands] with the hash of each band of each MinHash signature.

    A signature has len(factors) minima of factor * shingle + addend (mod 2^32) over the character `ngram`s of
    the cleaned text. A document without one keeps zeros. Returns how many shingles each document had.
    """
    codes = np.empty(min(cap, _longest(offsets)) + 1, np.uint32)
    signature = np.empty(len(factors), np.uint32)
    recent = np.empty(_RECENT, np.uint32)
    shingles = np.zeros(len(offsets) - 1, np.int64)
    rows = len(factors) // bands.shape[1]
    top = np.uint64(1)
    for _ in range(ngram):
        top *= _PRIME
    for document in range(len(offsets) - 1):
        count = _clean(data, offsets[document], offsets[document + 1], cap, classes, codes)
        if count < ngram:
            continue
        shingles[document] = count - ngram + 1
        signature[:] = np.uint32(0xFFFFFFFF)
        recent[:] = 0
        rolling = np.uint64(0)
        for i in range(count):
            code = codes[i] if codes[i] != BREAK else np.uint32(SPACE)
            rolling = rolling * _PRIME + np.uint64(code)
            if i >= ngram:
                old = codes[i - ngram] if codes[i - ngram] != BREAK else np.uint32(SPACE)
                rolling -= top * np.uint64(old)
            if i < ngram - 1:
                continue
            shingle = np.uint32(_mixed(rolling) >> np.uint64(32)) | np.uint32(1)
            # A minimum does not care how often it sees a value: skipping recent ones is exact, saves 2 of 3.
            slot = shingle >> np.uint32(18)
            if recent[slot] == shingle:
                continue
            recent[slot] = shingle
            for k in range(len(factors)):
                # The cast matters: numba widens uint32 products to 64 bits, and all minima become small.
                signature[k] = min(signature[k], np.uint32(factors[k] * shingle + addends[k]))
        for band in range(bands.shape[1]):
            key = np.uint64(band + 1)
            for k in range(band * rows, (band + 1) * rows):
                key = _mixed(key * _PRIME + np.uint64(signature[k]))
            bands[document, band] = key
    return shingles


@compiled
def word_grams(data, offsets, classes, n, shortest, by_paragraph, grams, paragraphs):
    """Write the hash of every run of `n` words into `grams`, document after document; returns the ends.

    `paragraphs` gets the number of the paragraph (blank lines part them) of each. With `by_paragraph` no run
    crosses a blank line. A document of fewer than `n` but at least `shortest` words gives one hash, of all of
    them. Both outputs need one place for every two bytes and one for every document.
    """
    codes = np.empty(_longest(offsets) + 1, np.uint32)
    words = np.empty(len(codes) // 2 + 2, np.uint64)
    paragraph_of = np.empty(len(words), np.int32)
    ends = np.empty(len(offsets) - 1, np.int64)
    out = 0
    top = np.uint64(1)
    for _ in range(n):
        top *= _PRIME
    for document in range(len(offsets) - 1):
        start, end = offsets[document], offsets[document + 1]
        count = _words(codes, _clean(data, start, end, end - start, classes, codes), words, paragraph_of)
        rolling, length = np.uint64(0), 0
        for i in range(count):
            if by_paragraph and i > 0 and paragraph_of[i] != paragraph_of[i - 1]:
                rolling, length = np.uint64(0), 0
            rolling = rolling * _PRIME + words[i]
            length += 1
            if length > n:
                rolling -= top * words[i - n]
            if length >= n or (count < n and count >= shortest and i == count - 1 and length == count):
                grams[out] = _mixed(rolling)
                paragraphs[out] = paragraph_of[i]
                out += 1
        ends[document] = out
    return ends


@compiled
def _words(codes, count, words, paragraph_of):
    """Hashes of the words in `codes` and the paragraph each stands in; how many."""
    found, paragraph, word, is_open = 0, 0, np.uint64(0), False
    for i in range(count + 1):
        code = codes[i] if i < count else np.uint32(SPACE)
        is_letter = code > BREAK and code < ALONE
        if is_letter:
            word = (word ^ np.uint64(code)) * _PRIME
            is_open = True
        elif is_open:
            words[found] = _mixed(word)
            paragraph_of[found] = paragraph
            found += 1
            word, is_open = np.uint64(0), False
        if code >= ALONE:
            words[found] = _mixed(np.uint64(code) * _PRIME)
            paragraph_of[found] = paragraph
            found += 1
        paragraph += code == BREAK
    return found


@compiled
def common(left, right):
    """How many values two sorted arrays without repeats share."""
    i, j, shared = 0, 0, 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            shared += 1
            i += 1
            j += 1
        elif left[i] < right[j]:
            i += 1
        else:
            j += 1
    return shared


@compiled
def post(heads, links, owners, used, grams, member):
    """Put `member` at the head of the chain of each of its grams, in places from `used` on."""
    for gram in grams:
        links[used], owners[used] = heads[gram], member
        heads[gram] = used
        used += 1


@compiled
def vote(heads, links, owners, grams, votes):
    """Count for every member how many of `grams` have it in their chain."""
    for gram in grams:
        place = heads[gram]
        while place >= 0:
            votes[owners[place]] += 1
            place = links[place]


@compiled
def long_gaps(data, offsets, longest, found):
    """Mark documents that may hold more than `longest` whitespace characters in a row, by their bytes.

    Unicode has whitespace of two and three bytes. Each of those bytes counts as one, so that a run is never
    missed; texts of kana are marked in vain. A run covers one of every `longest` + 1 bytes: only these are
    looked at.
    """
    for document in range(len(offsets) - 1):
        first, end = offsets[document], offsets[document + 1]
        middle = first + longest
        while middle < end and not found[document]:
            left = right = middle
            while left >= first and _may_be_gap(data[left]):
                left -= 1
            while right < end and _may_be_gap(data[right]):
                right += 1
            found[document] = right - left > longest + 1
            middle = right + longest + 1


@compiled
def _may_be_gap(byte):
    return 9 <= byte <= 13 or 28 <= byte <= 32 or 0x80 <= byte <= 0xAF or byte == 0xC2 or 0xE1 <= byte <= 0xE3
