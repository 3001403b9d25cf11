"""What the traits of documents are asked for: parameters that change what is said of them."""

from dataclasses import dataclass

from lmlab.core.errors import ConfigError


@dataclass(frozen=True)
class NGrams:
    """Which features of a text are hashed, into how many buckets.

    >>> NGrams(words=1, buckets=1 << 16).buckets
    65536
    """

    words: int = 2
    """Longest run of words, from 1."""
    characters: int = 0
    """Length in bytes of the runs inside a word, which see through odd spelling; 0 = none."""
    buckets: int = 1 << 18
    """A power of two; two features in one bucket can't be told apart."""

    def __post_init__(self) -> None:
        if self.words < 1 or not (self.characters == 0 or 2 <= self.characters <= 16):
            raise ConfigError(
                f"words={self.words}, characters={self.characters} are no features of a text. Choose words "
                "from 1, characters 0 or from 2 to 16."
            )
        if self.buckets < 2 or self.buckets & (self.buckets - 1):
            raise ConfigError(f"buckets={self.buckets} is no power of two. Choose one, such as {1 << 18}.")


STATISTICS = (
    "words", "word_length", "letter_words", "stop_words", "symbols", "marks", "bullet_lines",
    "ellipsis_lines", "ended_lines", "short_lines", "repeated_lines", "repeated_paragraphs", "repeated_runs",
)  # fmt: skip
"""Words (how many), their mean length, how many of Gopher's eight stop words; the others are shares."""
KINDS = ("card", "email", "iban", "ip", "key", "phone", "secret", "ssn")
"""What `redact` finds."""


@dataclass(frozen=True)
class Limit:
    """A document is at fault whose statistic lies outside."""

    statistic: str
    lowest: float = 0.0
    highest: float = float("inf")

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ConfigError(
                f"statistic={self.statistic!r} is not known. Choose from {', '.join(STATISTICS)}."
            )


GOPHER = (
    Limit("words", 50, 100_000),
    Limit("word_length", 3, 10),
    Limit("symbols", 0, 0.1),
    Limit("bullet_lines", 0, 0.9),
    Limit("ellipsis_lines", 0, 0.3),
    Limit("letter_words", 0.8),
    Limit("repeated_lines", 0, 0.3),
    Limit("repeated_paragraphs", 0, 0.3),
    Limit("repeated_runs", 0, 0.15),
)
"""Gopher's rules that hold in any language; for English add Limit("stop_words", 2)."""
RUBRIC = """Judge how much a reader learns from the text below, from 0 to 5: 0 for spam, menus and
gibberish, 1 for a text with little to learn, 3 for a clear and useful one, 5 for an excellent lesson.

{page}

Give one sentence of reasons, then a last line such as "Score: 3".
"""
