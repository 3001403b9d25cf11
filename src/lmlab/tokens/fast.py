"""The fast encoder: the compiled BPE of `kernels`, for tokenizers that `train_tokenizer` made.

Its character classes are read off the regular-expression engine of `tokenizers` itself, so both agree on
every code point whatever their Unicode version. Any other kind of tokenizer does not fit.
"""

import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from lmlab.tokens import kernels
from lmlab.tokens.tokenizer import byte_level_bpe

CLASSES = {kernels.LETTER: r"[\p{L}\p{M}]+", kernels.NUMBER: r"\p{N}+", kernels.SPACE: r"\s+"}
# Where Unicode has or plans characters with a class; surrogates are not in UTF-8. All other planes are OTHER.
PLANES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))


class FastEncoder:
    """Encodes pieces of UTF-8 exactly as `tokenizer` does. May be called from several threads at once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        self._merges = _merges(model["vocab"], model["merges"])
        self._thread = threading.local()

    @staticmethod
    def fits(tokenizer: tokenizers.Tokenizer) -> bool:
        """Whether this is what `byte_level_bpe` makes, trained, with nothing added but special tokens."""
        parts, ours = (json.loads(made.to_str()) for made in (tokenizer, byte_level_bpe()))
        is_plain = all(token["special"] for token in parts.pop("added_tokens"))
        del ours["added_tokens"]
        vocab = parts["model"].pop("vocab"), ours["model"].pop("vocab")
        del parts["model"]["merges"], ours["model"]["merges"]
        return is_plain and parts == ours and set(pre_tokenizers.ByteLevel.alphabet()) <= set(vocab[0])

    def __call__(self, pieces: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        """The ids of each piece."""
        if not hasattr(self._thread, "words"):
            self._thread.words = kernels.empty_words()
        data = np.frombuffer(b"".join(pieces), np.uint8)
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        out, out_ends = np.empty(len(data), np.uint32), np.empty(len(pieces), np.int64)
        kernels.encode_pieces(data, ends, self._merges, self._thread.words, out, out_ends)
        return np.split(out[: out_ends[-1]], out_ends[:-1]) if len(pieces) else []


def _merges(vocab: dict[str, int], merges: list[Any]) -> kernels.Merges:
    pairs = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges]
    size = 1 << max(4, (4 * len(pairs)).bit_length())
    keys, ranks = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    kernels.fill_pairs(np.array([vocab[a] << 32 | vocab[b] for a, b in pairs], np.int64), keys, ranks)
    return kernels.Merges(
        classes=_character_classes(),
        byte_ids=np.array([vocab[letter] for letter in byte_letters()], np.uint32),
        pair_keys=keys,
        pair_ranks=ranks,
        merged=np.array([vocab[a + b] for a, b in pairs], np.uint32),
    )


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _character_classes() -> NDArray[np.uint8]:
    """The class of every code point, as the pattern's engine sees it."""
    points = np.array([point for plane in PLANES for point in plane])
    text = "".join(map(chr, points.tolist()))
    classes = np.full(sys.maxunicode + 1, kernels.OTHER, np.uint8)
    for kind, pattern in CLASSES.items():
        is_match = np.ones(len(points), bool)
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
        for _, (start, end) in split.pre_tokenize_str(text):
            is_match[start:end] = False
        classes[points[is_match]] = kind
    classes[[kernels.LINE_FEED, kernels.CARRIAGE_RETURN]] = kernels.NEWLINE
    return classes
