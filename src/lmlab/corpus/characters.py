"""What each character is to the text kernels: a letter in lower case, a gap, or nothing; runs of words."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lmlab.corpus import kernels
from lmlab.corpus.kernels import ALONE, BREAK, DROPPED, SPACE
from lmlab.corpus.schema import text_buffers

TABLE_SIZE = 0x20000  # beyond it there are only Han ideographs and unassigned planes
ROUND_BYTES = 16 << 20
"""Texts hashed at a time: the hashes of a run of words take six times its bytes."""
_WITHOUT_SPACES = (
    (0x0E00, 0x1000),  # Thai, Lao, Tibetan
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # kana
    (0x3400, 0xA4D0),  # Han, Yi
    (0xF900, 0xFB00),  # Han, compatibility
)


class Runs(NamedTuple):
    """Word runs of some documents, in order."""

    grams: np.ndarray
    """uint64 hash of each run."""
    document: np.ndarray
    """int64 row of its document."""
    paragraph: np.ndarray
    """int32 number of its paragraph in the document."""


@cache
def classes() -> np.ndarray:
    """uint32 code of every code point below TABLE_SIZE: its letter in lower case, a gap, or dropped.

    Punctuation, symbols and control characters are dropped, so that quoting and spacing styles don't hide
    a duplicate. A letter whose lower case has several code points stays as it is.
    """
    table = np.full(TABLE_SIZE, DROPPED, np.uint32)
    for point in range(TABLE_SIZE):
        character = chr(point)
        if character.isspace():
            table[point] = SPACE
        elif unicodedata.category(character)[0] in "LMN":
            lower = character.lower()
            table[point] = ord(lower) if len(lower) == 1 else point
    for start, end in _WITHOUT_SPACES:
        letters = table[start:end] > SPACE
        table[start:end][letters] |= ALONE
    return table


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text as the kernels number them: by blank lines, those with a letter."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    is_letter = (classes()[np.minimum(points, TABLE_SIZE - 1)] > BREAK) | (points >= TABLE_SIZE)
    marks = np.where(is_letter, ord("a"), np.where(points == ord("\n"), ord("\n"), ord(" ")))
    found = re.finditer(rb"a(?:a| |\n(?! *\n))*", marks.astype(np.uint8).tobytes())
    return [text[piece.start() : piece.end()] for piece in found]


def distinct(values: np.ndarray) -> np.ndarray:
    """Sorted and without repeats. np.unique hashes, which took ten times as long for ten million runs."""
    ordered = np.sort(values)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]]


def word_runs(texts: pa.Table, words: int, shortest: int, *, by_paragraph: bool) -> Iterator[Runs]:
    """The hashes of all runs of `words` words, some documents at a time (see `kernels.word_grams`)."""
    data, offsets = text_buffers(texts)
    first = 0
    while first < texts.num_rows:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + ROUND_BYTES, side="right")) - 1)
        chosen = offsets[first : last + 1]
        size = int(chosen[-1] - chosen[0]) // 2 + len(chosen)
        grams, paragraphs = np.empty(size, np.uint64), np.empty(size, np.int32)
        ends = kernels.word_grams(data, chosen, classes(), words, shortest, by_paragraph, grams, paragraphs)
        document = np.repeat(np.arange(first, last), np.diff(ends, prepend=0))
        yield Runs(grams[: ends[-1]], document, paragraphs[: ends[-1]])
        first = last
