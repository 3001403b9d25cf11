"""The pre-tokenizers that are known by name: how text is cut into words before pairs are merged.

The forms are those that Oniguruma, the engine of `tokenizers`, reads as the originals are meant: no `$` (it
matches at every line end there) and no possessive quantifiers.
"""

import json
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True)
class Pattern:
    """How one family cuts text. `kernels` has it in code: whoever adds one extends both."""

    regex: str
    digits: int | None
    """Longest run of digits in one word; None = any."""
    upper: str = r"\p{L}"
    """What the first part of a word may be made of, and …"""
    lower: str = r"\p{L}"
    """… its second part."""
    other: str = r"[^\s\p{L}\p{N}]"
    """What is no blank and in no word of letters or digits."""
    digits_first: bool = False
    """Whether every digit is cut off before the regex sees the text."""

    @property
    def splits_case(self) -> bool:
        """Whether a word may end between a small letter and a capital."""
        return self.upper != self.lower

    @property
    def is_gpt2(self) -> bool:
        """Whether only a blank may stand before a word, and line breaks are like other blanks."""
        return self.regex == _GPT2

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """As `tokenizers` builds it."""
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.digits_first else []
        split = pre_tokenizers.Split(Regex(self.regex), "isolated")
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*digits, split, by_bytes])


_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANK = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_BLANK}"
_QWEN2 = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
# Combining marks (\p{M}) count as letters, or Hindi words fall apart at vowel signs.
_MARKED, _OTHER = r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]"
_LMLAB = _CL100K.replace(r"?\p{L}+", rf"?{_MARKED}+").replace(r"\p{L}\p{N}", r"\p{L}\p{M}\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_BLANK}"
)
PATTERNS = {
    "gpt2": Pattern(_GPT2, digits=None),
    "smollm": Pattern(_GPT2, digits=1, digits_first=True),
    "cl100k": Pattern(_CL100K, digits=3),
    "qwen2": Pattern(_QWEN2, digits=1),
    "lmlab": Pattern(_LMLAB, digits=3, upper=_MARKED, lower=_MARKED, other=_OTHER),
    "o200k": Pattern(_O200K, digits=3, upper=_UPPER, lower=_LOWER),
}


def pattern_of(tokenizer: tokenizers.Tokenizer) -> str | None:
    """The name of a tokenizer's pattern; None if it is none of ours."""
    if tokenizer.pre_tokenizer is None:
        return None
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    known = ((name, pattern.pre_tokenizer().__getstate__()) for name, pattern in PATTERNS.items())
    return next((name for name, ours in known if _steps(json.loads(ours)) == _steps(state)), None)


def _steps(state: dict[str, Any]) -> list[Any]:
    """What a pre-tokenizer does, one thing after the other; what only changes offsets is left out."""
    match state:
        case {"type": "Sequence", "pretokenizers": parts}:
            return [step for part in parts for step in _steps(part)]
        case {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}:
            return [("Isolated", False, _GPT2), ("bytes", False)]
        case {"type": "ByteLevel", "add_prefix_space": prefix}:
            return [("bytes", prefix)]
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}:
            return [(behavior, invert, regex)]
        case _:
            return [state]


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
