"""What curation is asked to do: the parameters that change which documents are kept."""

from dataclasses import dataclass
from typing import Any

from lmlab.artifacts import Artifact
from lmlab.core.errors import ConfigError


@dataclass(frozen=True)
class Fuzzy:
    """Near duplicates: MinHash over characters finds candidates, shared word runs decide.

    >>> Fuzzy(perms=286, bands=26).rows
    11
    """

    perms: int = 286
    """Hash functions in a signature; a multiple of `bands`."""
    bands: int = 26
    """Documents that agree in all rows of any band become candidates; Jaccard 0.74 is found half the time."""
    ngram: int = 5
    """Characters in a shingle of the cleaned text."""
    cap: int = 500_000
    """Characters of a document that are looked at: a huge one saturates its signature and resembles all."""
    words: int = 3
    """Words in the runs that decide."""
    containment: float = 0.75
    """Share of a document's word runs found in a kept one from which on it is dropped, above 0 to 1."""
    seed: int = 0
    """Draws the hash functions."""
    version: int = 1
    """Of the cleaning and hashing in the code; another one can't be asked for."""

    def __post_init__(self) -> None:
        _check_version(self.version)
        if self.bands < 1 or self.perms < 1 or self.perms % self.bands:
            raise ConfigError(
                f"bands={self.bands} does not divide perms={self.perms}, so bands would differ in length. "
                "Choose perms as a multiple of bands, as in 286 and 26."
            )
        if not 0 < self.containment <= 1:
            raise ConfigError(
                f"containment={self.containment} is no share of a document. Choose above 0, up to 1."
            )
        if min(self.ngram, self.cap, self.words) < 1:
            raise ConfigError(
                f"ngram={self.ngram}, cap={self.cap}, words={self.words} must all be at least 1, or "
                "there is nothing to compare."
            )

    @property
    def rows(self) -> int:
        """Rows in a band."""
        return self.perms // self.bands


@dataclass(frozen=True)
class Holdout:
    """How much of every domain is kept out of training, chosen by document id alone."""

    share: float = 0.01
    """Share of a domain's documents, 0 to below 1, before the two minima."""
    min_documents: int = 2
    """At least so many documents of every domain."""
    min_bytes: int = 50_000
    """At least so many bytes of text of every domain: below that a domain's score is noise."""
    seed: int = 0
    """Another seed holds out other documents."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ConfigError(f"share={self.share} of a domain can't be held out. Choose from 0 to below 1.")
        if self.min_documents < 1 or self.min_bytes < 0:
            raise ConfigError(
                f"min_documents={self.min_documents}, min_bytes={self.min_bytes}: a domain without held-out "
                "text can't be scored. Hold out at least 1 document."
            )


@dataclass(frozen=True)
class Decontamination:
    """Which training documents repeat held-out text and so would turn a score into memory."""

    words: int = 13
    """Words in a run; shorter ones occur by chance."""
    overlap: float = 0.5
    """A paragraph is flagged when this share of its runs stands in held-out text."""
    min_runs: int = 4
    """… and at least so many different ones do."""
    common: int | None = 10
    """A run found in more documents than this is boilerplate (a licence header) and is ignored; None = off:
    a famous eval has many copies."""
    shared: int = 10
    """A run found in more records of one eval than this is its wording, no question, and is ignored."""
    shortest: int = 3
    """Documents of at least so many words, but too few for a run, are compared whole."""
    version: int = 1
    """Of the cleaning and hashing in the code; another one can't be asked for."""

    def __post_init__(self) -> None:
        _check_version(self.version)
        counts = {name: getattr(self, name) for name in ("words", "min_runs", "common", "shared", "shortest")}
        if min(count for count in counts.values() if count is not None) < 1 or not 0 < self.overlap <= 1:
            raise ConfigError(
                f"{counts} with overlap={self.overlap} would flag everything or nothing. Choose at least 1 "
                "of each, and a share above 0, up to 1."
            )


@dataclass(frozen=True)
class Normalization:
    """How raw rows become documents."""

    part_bytes: int = 256 << 20
    """Text aimed at in one part."""
    exact: bool = True
    """Drop all but the first of equal texts."""
    bare: bool = False
    """Drop the other columns instead of keeping them in meta."""

    def __post_init__(self) -> None:
        if self.part_bytes < 1:
            raise ConfigError(f"part_bytes={self.part_bytes} holds no text. Choose about 256 MB.")


@dataclass(frozen=True)
class Drop:
    """Drops the documents that `column` of some attributes gives a reason for: a text, or true."""

    stage: str
    """Names the rule in stages.json and in rejected/."""
    attributes: Artifact
    column: str = "reason"
    keep_if_missing: bool = False
    """Whether documents without a row in the attributes stay."""

    def fault(self, value: Any) -> str | None:
        """Why a document with this value is dropped; None if it stays."""
        if not value:
            return None
        return value if self.column == "reason" and isinstance(value, str) else f"{self.column}: {value}"


@dataclass(frozen=True)
class Keep:
    """Keeps the documents whose value in `column` is large enough, or one of some; no value is no."""

    stage: str
    """Names the rule in stages.json and in rejected/."""
    attributes: Artifact
    column: str
    at_least: float | None = None
    """The smallest number to keep."""
    among: tuple[str | bool, ...] = (True,)
    """The values to keep, where `at_least` is None."""
    keep_if_missing: bool = False
    """Whether documents without a row in the attributes stay."""

    def fault(self, value: Any) -> str | None:
        """Why a document with this value is dropped; None if it stays."""
        if self.at_least is None:
            return None if value in self.among else f"{self.column}: {value}"
        if value is not None and value >= self.at_least:
            return None
        return f"{self.column} below {self.at_least:g}: {value}"


@dataclass(frozen=True)
class RemoveSpans:
    """Cuts spans out of the texts: start, end (in UTF-8 bytes), and maybe a `replacement`."""

    stage: str
    """Names the rule in stages.json and in rejected/."""
    attributes: Artifact
    column: str = "spans"
    keep_if_missing: bool = False
    """Whether documents without a row in the attributes stay."""


Rule = Drop | Keep | RemoveSpans
VERSION = 1
"""Of the text kernels: cleaning, shingles, word runs."""


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ConfigError(
            f"version={version} of the text hashes is not what this code computes, so results would not be "
            f"what the recipe says. Leave version={VERSION}, or check out the code that had {version}."
        )
