"""Cutting a long text into pieces whose ids join exactly to those of the whole text.

Most cuts are at *safe points*: pairs of characters between which every known pattern ends a word, whatever
stands further left or right. A giant run without one (DNA, Chinese without stops, megabytes of blanks) is cut
inside its word: two encodings join exactly if and only if the two tokens at the seam, encoded together, stay
two. (The merges of the whole text never cross a seam that the merges of those two alone do not cross.)
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import tokenizers
from tokenizers import normalizers

from lmlab.core.errors import InputError
from lmlab.tokens.patterns import PATTERNS, Pattern, pattern_of

PIECE_CHARS = 10_000  # a longer document is cut here or at the next safe point
LONGEST_ENDING = 4
BLANKS = " \t\u00a0\u3000"
UNCUT_BYTES = 16 << 20
"""What is encoded in one go by a tokenizer whose words are not understood; about 40 times as much memory."""
SEAMS = 64  # how many seams of a window are tried before it is doubled
BLOCK = 1 << 20

# (visible | blank visible), (letter or digit | line break or stop), (ASCII letter | digit): no alternative of
# any pattern matches across. What Python takes for visible or a letter, the engine does too.
SAFE_POINT = re.compile(r"(?<=\S)(?= \S)|(?<=[^\W_])(?=[\n,.:;!?()，。、：；！？])|(?<=[a-zA-Z])(?=[0-9])")


@dataclass(frozen=True, eq=False)
class Cutter:
    """Cuts texts for one tokenizer."""

    tokenizer: tokenizers.Tokenizer

    @cached_property
    def pattern(self) -> Pattern | None:
        """The tokenizer's pattern, if its words are understood; None if it can't be cut."""
        normalizer = self.tokenizer.normalizer
        known = normalizer is None or isinstance(normalizer, normalizers.NFC)
        for token in self.tokenizer.get_added_tokens_decoder().values():
            if not token.special:  # it is found in texts, so no cut may fall into it or beside it
                known &= not (token.lstrip or token.rstrip or SAFE_POINT.search(f"a{token.content}a"))
        name = pattern_of(self.tokenizer)
        return PATTERNS[name] if known and name else None

    def pieces(self, document: bytes, piece_chars: int = PIECE_CHARS) -> Iterator[bytes]:
        """The text in pieces of about `piece_chars`, never more than a few windows long."""
        if len(document) <= piece_chars or (self.pattern is None and len(document) <= UNCUT_BYTES):
            yield document
            return
        if self.pattern is None:
            raise InputError(
                f"a document has {len(document):,} bytes, and where text may be cut for this tokenizer is "
                f"not known, so it would take gigabytes. Cut it into parts of {UNCUT_BYTES >> 20} MiB, "
                f"or use a tokenizer with one of the patterns {', '.join(PATTERNS)}."
            )
        text, read = "", 0
        while read < len(document) or text:
            end = _character_end(document, read + BLOCK)
            text, read = text + document[read:end].decode(), end
            start = 0
            for cut in self._cuts(text, piece_chars, is_end=read == len(document)):
                yield text[start:cut].encode()
                start = cut
            text = text[start:]

    def _cuts(self, text: str, piece_chars: int, *, is_end: bool) -> Iterator[int]:
        """Where to cut `text`, of which more may follow unless `is_end`; the rest is taken up again then."""
        start, window = 0, 2 * piece_chars
        while len(text) - start > window:
            point = SAFE_POINT.search(text, start + piece_chars, start + window)
            if cut := point.start() if point else self._seam(text, start, window):
                yield cut
                start, window = cut, 2 * piece_chars
            else:
                window *= 2
        if is_end:
            yield len(text)

    def _seam(self, text: str, start: int, window: int) -> int:
        """The last place in the giant word at the end of the window where ids join; 0 for none."""
        assert self.pattern is not None
        ids, ends = self._encoded(text[start : start + window])
        places = [index for index, end in enumerate(ends[:-1]) if end][-SEAMS:]
        for before, index in reversed(list(pairwise(places))):
            cut = start + ends[index]
            if not is_inside_word(self.pattern, text, start, cut):
                continue
            if (self.pattern.digits or 0) > 1 and text[cut].isnumeric():
                return cut  # a border of words
            right, right_ends = self._encoded(text[cut : cut + window])
            after = next((index for index, end in enumerate(right_ends) if end), len(right) - 1)
            seam, _ = self._encoded(text[start + ends[before] : cut + right_ends[after]])
            if seam == [*ids[before + 1 : index + 1], *right[: after + 1]]:
                return cut
        return 0

    @lru_cache(maxsize=4)  # noqa: B019 - a cutter lives as long as its tokenizer
    def _encoded(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a text, and where each ends in it; 0 for those that end inside a character."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets[1:]] + [len(text)]
        ends = [end for _, end in encoding.offsets]
        return encoding.ids, [end if end == start else 0 for end, start in zip(ends, starts, strict=True)]


def is_inside_word(pattern: Pattern, text: str, start: int, cut: int) -> bool:
    """Whether a cut leaves the words of both sides as they are in the whole text, but for the one it divides.

    The cut lies in a run of one kind of character. What stands before the run decides whether its left part
    alone, and its right part alone, are read as in the whole; the reason stands at each rule.
    """
    kind = _kind(pattern, text[cut])
    if not kind or cut + 1 >= len(text) or kind != _kind(pattern, text[cut + 1]):
        return False
    first = cut
    while first > start and _kind(pattern, text[first - 1]) == kind:
        first -= 1
    before = text[first - 1] if first > start else ""  # "": the piece was cut here, or the text begins
    if cut - first < LONGEST_ENDING:
        return False  # 'll and 've are words of their own
    if kind in ("Lu", "Lo"):  # after a small letter a capital begins a word
        return not before or unicodedata.category(before)[0] not in "LM"
    if kind == "N":
        return (cut - first) % (pattern.digits or 1) == 0
    if kind == "\n":  # after a stop the line breaks belong to its word
        return not before or before.isalnum() or before in BLANKS
    if kind == " ":  # with a line break in front they would be its word's only if another one followed
        return not before.isspace()
    # o200k takes slashes after line breaks into the word before these.
    return not (kind == "P" and pattern.splits_case and before in ("\r", "\n") and text[first] == "/")


def _kind(pattern: Pattern, character: str) -> str:
    category = unicodedata.category(character)
    if character in BLANKS or character == "\n":
        return " " if character in BLANKS else "\n"
    if category[0] in "PS" or character == "\0":
        return "P"
    if category[0] == "L" and pattern.splits_case:
        return category if category in ("Lu", "Ll", "Lo") else ""
    return category[0] if category[0] in "LN" else ""


def _character_end(data: bytes, at: int) -> int:
    """The first border of characters at or after byte `at`."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))
