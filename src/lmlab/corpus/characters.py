"""What each character is to the text kernels: a letter (in lower case), a gap, or nothing."""

import unicodedata
from functools import cache

import numpy as np

from lmlab.corpus.kernels import ALONE, DROPPED, SPACE

TABLE_SIZE = 0x20000  # beyond it there are only Han ideographs and unassigned planes
_WITHOUT_SPACES = (
    (0x0E00, 0x1000),  # Thai, Lao, Tibetan
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # kana
    (0x3400, 0xA4D0),  # Han, Yi
    (0xF900, 0xFB00),  # Han, compatibility
)


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
