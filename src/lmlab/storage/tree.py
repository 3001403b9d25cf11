"""A folder's content as one hash: which files, how large, and what is in them.

Dot-files at the top are not content: records and claims lie there.
"""

import hashlib
from collections.abc import Mapping

from lmlab.storage.paths import Path

Listing = Mapping[str, tuple[int, str]]
"""Size and sha256 of each file, by its name below the folder."""
_BLOCK = 1 << 20


def content(folder: Path) -> list[Path]:
    """The files below a folder, but for the dot-files at its top."""
    return [path for child in folder.list() if not child.name.startswith(".") for path in _below(child)]


def digests(folder: Path) -> Listing:
    """Read and hash every file."""
    return {path.relative_to(folder): _sha256(path) for path in content(folder)}


def tree_sha256(listing: Listing) -> str:
    """One hash over names, sizes and contents.

    >>> tree_sha256({})[:8]
    'e3b0c442'
    """
    lines = [f"{digest} {size} {name}\n" for name, (size, digest) in sorted(listing.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def differences(recorded: Listing, found: Listing) -> list[str]:
    """What changed, a line a file."""
    return [
        f"{name}: {_difference(recorded.get(name), found.get(name))}"
        for name in sorted(recorded.keys() | found.keys())
        if recorded.get(name) != found.get(name)
    ]


def _difference(recorded: tuple[int, str] | None, found: tuple[int, str] | None) -> str:
    if recorded is None or found is None:
        return "is missing" if recorded else "is not part of the artifact"
    if recorded[0] != found[0]:
        return f"has {found[0]} bytes instead of {recorded[0]}"
    return f"has other content (sha256 {found[1][:12]} instead of {recorded[1][:12]})"


def _below(child: Path) -> list[Path]:
    return child.walk() if child.is_dir() else [child]


def _sha256(path: Path) -> tuple[int, str]:
    if not path.is_local:
        data = path.read_bytes()
        return len(data), hashlib.sha256(data).hexdigest()
    hasher, size = hashlib.sha256(), 0
    with path.local.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
            size += len(block)
    return size, hasher.hexdigest()
