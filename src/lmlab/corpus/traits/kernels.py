"""The loops behind the traits of documents: hashed features of their bytes, embeddings, nearest topics."""
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers the types of what is compiled

import numpy as np

from lmlab.corpus.kernels import compiled

_PRIME = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _mixed(value):
    value = (np.uint64(value) ^ (np.uint64(value) >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


@compiled
def _is_word(byte):
    return byte >= 128 or 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95


@compiled
def _token(data, position, end):
    """Hash and end of the token at `position`: a word, a mark, or a character of a script without spaces."""
    word = np.uint64(0)
    first = data[position]
    if not _is_word(first):
        return np.uint64(first), position + 1
    while position < end and _is_word(data[position]):
        byte = data[position]
        if 0xE3 <= byte <= 0xE9:  # kana and Han: each stands alone
            if word != 0:
                break
            last = min(position + 3, end)
            for i in range(position, last):
                word = (word ^ np.uint64(data[i])) * _PRIME
            return word, last
        if 65 <= byte <= 90:
            byte += np.uint8(32)
        elif 48 <= byte <= 57:
            byte = np.uint8(48)  # which number it is says little
        word = (word ^ np.uint64(byte)) * _PRIME
        position += 1
    return word, position


@compiled
def _names_something(data, start, end):
    """Whether a token is a word of at least three letters: not a mark, a number, a path of an icon."""
    if end - start < 3:
        return False
    for i in range(start, end):
        if data[i] < 128 and not (97 <= data[i] <= 122 or 65 <= data[i] <= 90):
            return False
    return True


@compiled
def features(data, offsets, words, characters, cap, names_only, place, indices, counts):
    """Hashed features of every document, each once with its count; returns the ends.

    They are runs of up to `words` words and, unless 0, every run of `characters` bytes inside a word with its
    edges. `place` has one int64 for each bucket, all -1. At most `cap` bytes of a document are looked at, and
    with `names_only` just the words of three letters or more.
    """
    mask = np.uint64(len(place) - 1)
    ends = np.empty(len(offsets) - 1, np.int64)
    recent = np.zeros(max(words, 1), np.uint64)
    out = 0
    for document in range(len(offsets) - 1):
        first, seen = out, 0
        position, end = offsets[document], min(offsets[document + 1], offsets[document] + cap)
        while position < end:
            if data[position] <= 32:
                position += 1
                continue
            start = position
            word, position = _token(data, start, end)
            if names_only and not _names_something(data, start, position):
                continue
            for n in range(min(words, seen + 1) - 1, 0, -1):
                recent[n] = recent[n - 1] * _PRIME + word
            recent[0] = word
            seen += 1
            runs = min(words, seen)
            windows = position - start + 3 - characters if characters else 0
            for k in range(runs + max(windows, 0)):
                key = recent[k] + np.uint64(k) if k < runs else np.uint64(characters)
                for i in range(start - 1 + k - runs, start - 1 + k - runs + characters if k >= runs else 0):
                    key = (key ^ np.uint64(data[i] if start <= i < position else 32)) * _PRIME
                slot = np.int64(_mixed(key) & mask)
                if place[slot] < first:
                    place[slot] = out
                    indices[out], counts[out] = slot, 0
                    out += 1
                counts[place[slot]] += 1
        ends[document] = out
    return ends


@compiled
def orthonormal(rows):
    """Make the rows of a matrix perpendicular and of length one in place (a row of no news becomes zeros).

    Not LAPACK: its sums depend on how many threads it takes.
    """
    for i in range(len(rows)):
        for j in range(i + 1):
            product = 0.0
            for k in range(rows.shape[1]):
                product += rows[i, k] * rows[j, k]
            if j < i:
                rows[i] -= product * rows[j]
            else:
                rows[i] *= 1 / np.sqrt(product) if product > 1e-12 else 0.0


@compiled
def nearest(vectors, centroids, topics, similarities):
    """The most similar of `centroids` [dims, topics] for every vector, and how similar it is."""
    products = np.empty(centroids.shape[1], np.float32)
    for row in range(len(vectors)):
        products[:] = 0
        for k in range(len(centroids)):
            products += vectors[row, k] * centroids[k]
        topics[row] = np.argmax(products)
        similarities[row] = products[topics[row]]
