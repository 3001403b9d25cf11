"""The collections that the lab knows by name: where they lie, what becomes of a row, about how many tokens.

They stand in catalogue.json. An entry is thin: patterns scoped to folders, and a renderer. It holds no
revision, for what is published changes: who fetches pins one, and that is part of the recipe.
"""

import functools
import json
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.corpus.registry import AnySource, Files, Slice, Source


@dataclass(frozen=True)
class Entry:
    """One collection."""

    name: str
    """`family` or `family/part`."""
    place: str
    """`owner/name` of a data set on the hub, or an https:// address with {file} for the name of one file."""
    files: tuple[str, ...]
    """Patterns of its files; of one from the web, of the members of that archive."""
    renderer: str
    """What extract makes of a row; normalizing comes after it, as everywhere."""
    license: str
    """As the publisher names it; "see card" where documents have their own."""
    tokens_billions: float | None
    """Rough, for a first weight; None where nobody counted."""
    counted: str
    """Who counted, with what and when."""

    def at(self, pin: str, file: str = "") -> AnySource:
        """The source to fetch: `pin` is a commit of the repository; of one `file` of the web its sha256.

        >>> lookup("cp/peps").at("5821709").place
        'hf://datasets/common-pile/python_enhancement_proposals_filtered@5821709'
        """
        name, is_page = self.name.replace("/", "-"), self.place.startswith("https://")
        pieces = (Slice(name, self.files if is_page else ("*",), self.renderer),)
        if not is_page:
            return Files(name, f"hf://datasets/{self.place}@{pin}", self.license, pieces, self.files)
        if ("{file}" in self.place) != bool(file):
            raise ConfigError(
                f"{self.name} is {self.place}: file={file!r} does not fit. Name one file of it."
            )
        address = self.place.format(file=file)
        kept = f"{name}-{address.rpartition('/')[2]}"
        return Source("web", address, "as pinned", kept, pin, self.license, pieces)


def lookup(name: str) -> Entry:
    """The entry of this name. Raises ConfigError with the nearest names for another."""
    entries = _read()["collections"]
    if name not in entries:
        near = get_close_matches(name, entries, n=3) or sorted(entries)[:3]
        raise ConfigError(f"{name!r} is no collection of the catalogue. Did you mean {', '.join(near)}?")
    place, files, *rest = entries[name]
    return Entry(name, place, tuple(files), *rest)


def names() -> tuple[str, ...]:
    """All collections, sorted."""
    return tuple(sorted(_read()["collections"]))


def code_only(_text: str, meta: dict[str, Any]) -> str:
    """A rule for `filter_documents`: keeps files whose ending is that of a language (The Stack v2).

    >>> code_only("", {"extension": "rs"}), code_only("", {"path": "logo.bin"})
    ('', 'not code: bin')
    """
    ending = str(meta.get("extension") or PurePosixPath(str(meta.get("path") or "")).suffix).lstrip(".")
    return "" if ending.lower() in _read()["code"].split() else f"not code: {ending or 'no ending'}"


@functools.cache
def _read() -> dict[str, Any]:
    return json.loads(resources.files("lmlab.corpus").joinpath("catalogue.json").read_text())
