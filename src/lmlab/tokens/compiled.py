"""The compiled encoder: byte-level BPE with a known pattern, made ready for `kernels`.

The classes of characters are read off the regular-expression engine of `tokenizers` itself, so both agree on
every code point whatever their Unicode version.
"""

import json
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from lmlab.tokens import kernels
from lmlab.tokens.patterns import PATTERNS, Pattern, byte_letters, pattern_of

Ids = NDArray[np.uint32]

# Where Unicode has or plans characters with a class; surrogates are not in UTF-8. All other planes are OTHER.
PLANES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
ANY = 1 << 62


class CompiledEncoder:
    """Encodes pieces of UTF-8, special tokens being text. May be called from several threads at once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        parts = json.loads(tokenizer.to_str())
        self._normalizer = tokenizer.normalizer
        self._merges = _merges(PATTERNS[pattern_of(tokenizer) or ""], parts["model"])
        self._thread = threading.local()
        added: dict[bytes, Any] = {token["content"].encode(): token for token in parts["added_tokens"]}
        self._added = {text: np.array([t["id"]], np.uint32) for text, t in added.items() if not t["special"]}
        longest_first = [re.escape(text) for text in sorted(added, key=len, reverse=True)]
        self._any_added = re.compile(b"|".join(longest_first))

    def __call__(self, pieces: Sequence[bytes]) -> list[Ids]:
        """The ids of each piece."""
        if not self._added:
            return self._encode(pieces)
        cut = [list(self._around_added(piece)) for piece in pieces]
        ids = iter(self._encode([text for parts in cut for text in parts[::2]]))
        joined = [
            [next(ids), *(x for token in parts[1::2] for x in (self._added[token], next(ids)))]
            for parts in cut
        ]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in joined]

    def _around_added(self, piece: bytes) -> Iterator[bytes]:
        """Text and added tokens that are found in it, by turns."""
        start = 0
        for match in self._any_added.finditer(piece):
            if match[0] in self._added:  # a special one hides others, but is text
                yield piece[start : match.start()]
                yield match[0]
                start = match.end()
        yield piece[start:]

    def _encode(self, pieces: Sequence[bytes]) -> list[Ids]:
        if not pieces:
            return []
        if not hasattr(self._thread, "words"):
            self._thread.words = kernels.empty_words()
        if self._normalizer:
            pieces = [self._normal_form(piece) for piece in pieces]
        data = np.frombuffer(b"".join(pieces), np.uint8)
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        out, out_ends = np.empty(len(data), np.uint32), np.empty(len(pieces), np.int64)
        kernels.encode_pieces(data, ends, self._merges, self._thread.words, out, out_ends)
        return np.split(out[: out_ends[-1]], out_ends[:-1])

    def _normal_form(self, piece: bytes) -> bytes:
        if piece.isascii() or unicodedata.is_normalized("NFC", text := piece.decode()):
            return piece
        return self._normalizer.normalize_str(text).encode()


def why_not_compiled(tokenizer: tokenizers.Tokenizer) -> str:
    """What of a tokenizer the compiled encoder does not know; empty if nothing."""
    parts = json.loads(tokenizer.to_str())
    model, added = parts["model"], parts["added_tokens"]
    if model["type"] != "BPE" or (model["unk_token"] and not set(byte_letters()) <= set(model["vocab"])):
        return "it is no byte-level BPE"
    if pattern_of(tokenizer) is None:
        return "its pre-tokenizer is none of " + ", ".join(PATTERNS)
    if parts["normalizer"] not in (None, {"type": "NFC"}):
        return f"its normalizer is {parts['normalizer']['type']}"
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if used := [name for name in options if model.get(name)] or [
        name for name in ("truncation", "padding") if parts[name]
    ]:
        return f"it has {', '.join(used)}"
    finders = ("single_word", "lstrip", "rstrip", "normalized")
    if not all(token["special"] for token in added) and any(
        token[name] for token in added for name in finders
    ):
        return "added tokens are found in its texts by rules"
    return ""


def _merges(pattern: Pattern, model: dict[str, Any]) -> kernels.Merges:
    vocab: dict[str, int] = model["vocab"]
    pairs = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"]]
    size = 1 << max(4, (4 * len(pairs)).bit_length())
    keys, ranks = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    kernels.fill_pairs(np.array([vocab[a] << 32 | vocab[b] for a, b in pairs], np.int64), keys, ranks)
    return kernels.Merges(
        rules=kernels.Rules(
            pattern.digits or ANY, pattern.is_gpt2, pattern.splits_case, pattern.digits_first
        ),
        classes=_character_classes(pattern),
        byte_ids=np.array([vocab.get(letter, kernels.NO_ID) for letter in byte_letters()], np.uint32),
        pair_keys=keys,
        pair_ranks=ranks,
        merged=np.array([vocab[a + b] for a, b in pairs], np.uint32),
        vocabulary=_vocabulary(vocab if model.get("ignore_merges") else {}),
    )


def _vocabulary(vocab: dict[str, int]) -> kernels.Words:
    """The words of a vocabulary as bytes; those with other letters than the bytes' can't occur."""
    letters = byte_letters()
    bytes_of = str.maketrans({letter: chr(byte) for byte, letter in enumerate(letters)})
    known = [word for word in vocab if set(word).issubset(letters)]
    data = [word.translate(bytes_of).encode("latin-1") for word in known]
    words = kernels.empty_words(len(data), sum(map(len, data)))
    ends = np.cumsum([len(word) for word in data], dtype=np.int64)
    ids = np.array([vocab[word] for word in known], np.uint32)
    kernels.fill_words(np.frombuffer(b"".join(data), np.uint8), ends, ids, words)
    return words


@cache
def _character_classes(pattern: Pattern) -> NDArray[np.uint8]:
    """What every code point is, as the pattern's engine sees it."""
    points = np.array([point for plane in PLANES for point in plane])
    text = "".join(map(chr, points.tolist()))
    classes = np.full(sys.maxunicode + 1, kernels.OTHER, np.uint8)
    classes[points] = 0
    regexes = {
        kernels.UPPER: pattern.upper,
        kernels.LOWER: pattern.lower,
        kernels.NUMBER: r"\p{N}",
        kernels.SPACE: r"\s",
        kernels.OTHER: pattern.other,
    }
    for kind, regex in regexes.items():
        is_match = np.ones(len(points), bool)
        split = pre_tokenizers.Split(tokenizers.Regex(f"{regex}+"), "removed")
        for _, (start, end) in split.pre_tokenize_str(text):
            is_match[start:end] = False
        classes[points[is_match]] |= kind
    if pattern.digits_first:  # by another engine, which knows other digits: 13 more in tokenizers 0.23
        for _, (start, end) in pre_tokenizers.Digits().pre_tokenize_str(text)[1::2]:
            classes[points[start:end]] = kernels.NUMBER
    if not pattern.is_gpt2:
        classes[[kernels.LINE_FEED, kernels.CARRIAGE_RETURN]] |= kernels.BREAK
    return classes
