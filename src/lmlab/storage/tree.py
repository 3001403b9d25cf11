"""A folder's content as one hash: which files, how large, and what is in them.

Dot-files at the top are not content: records and claims lie there.
"""

import contextvars
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lmlab.storage.paths import Path

Listing = Mapping[str, tuple[int, str]]
"""Size and sha256 of each file, by its name below the folder."""


def content(folder: Path) -> list[Path]:
    """The files below a folder, but for the dot-files at its top."""
    return [path for path in folder.walk() if not path.relative_to(folder).startswith(".")]


def digests(folder: Path, files: Sequence[Path] | None = None) -> Listing:
    """Read and hash every file, or those of a listing at hand."""
    paths = content(folder) if files is None else files
    if folder.is_local or len(paths) < 2:
        return {path.relative_to(folder): sha256(path) for path in paths}
    # What the caller prepaid from the transfer budget holds for these threads too.
    contexts = [contextvars.copy_context() for _ in paths]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda context, path: context.run(sha256, path), contexts, paths)
        return dict(zip((path.relative_to(folder) for path in paths), found, strict=True))


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


def sha256(path: Path) -> tuple[int, str]:
    """Size and hash of one file, as it is read."""
    hasher, size = hashlib.sha256(), 0
    for block in path.chunks():
        hasher.update(block)
        size += len(block)
    return size, hasher.hexdigest()
