"""Scratch that removes itself: `{root}/tmp/ttl=Nd/…`, in the region that works on it.

Buckets expire it by the rules that `lmlab fs lifecycle` prints, local roots by `lmlab gc`, both by the
age of each file. Scratch lies in declared places only; a bucket is never guessed from a region.
"""

import contextlib
import os
import re
import secrets
import time
import warnings
from typing import Any

from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import regions
from lmlab.storage.lab import lab
from lmlab.storage.paths import Path
from lmlab.storage.roots import choose_root, regional_root

DAYS = (1, 2, 3, 4, 5, 6, 7, 14, 30)
"""Each has a rule of its own in a bucket, so there are few."""
FOLDER = "tmp"
DAY_S = 86_400
UPLOAD_DAYS = 7
DRAFT = re.compile(r"\..*\.unfinished$")
"""How `Path.writer` calls what is not yet the file."""


def scratch(days: float, root: Path | None = None, name: str | None = None) -> Path:
    """A place for files that are needed for so many days, new for each call unless named.

    Days are rounded up to the next of 1-7, 14, 30, with a warning. Without a root it lies in that of this
    machine's region. Raises ConfigError for zero days, and for a place that lmlab.toml does not declare.
    """
    place = root or (regional_root() if regions.own_region() and lab().roots else choose_root())
    if not (place.is_local or any(f"{place}/".startswith(f"{known}/") for known in regions.regional_roots())):
        raise ConfigError(
            f"{place} is no root of this lab, so nothing there would expire. Name one of its roots."
        )
    return _folder(place, _rounded(days)) / (name or f"{time.strftime('%m%d-%H%M')}-{secrets.token_hex(4)}")


def sweep(root: Path, now: float, *, remove: bool = True) -> list[tuple[Path, int]]:
    """Remove what has expired below a root, or only say so; each file with its bytes."""
    expired: list[tuple[Path, int]] = []
    for folder in (root / FOLDER).list():
        found = re.fullmatch(r"ttl=(\d+)d", folder.name)
        old = now - int(found.group(1)) * DAY_S if found else float("-inf")
        # What its owner removes in this moment is left to the next sweep, with its neighbours.
        with contextlib.suppress(StorageError):
            expired += [(path, stat.size_bytes) for path, stat in folder.walk_stats() if stat.modified < old]
    for path, _ in expired if remove else ():
        path.remove()
        with contextlib.suppress(OSError):
            _remove_empty(path.parent, root / FOLDER)
    return expired


def sweep_drafts(root: Path, now: float, *, remove: bool = True) -> list[tuple[Path, int]]:
    """Remove what killed writers left a day ago or earlier below a local root, or only say so."""
    if not root.is_local:
        return []
    found = [
        Path(f"{folder}/{name}") for folder, _, names in os.walk(root) for name in names if DRAFT.match(name)
    ]
    stats = [(path, path.stat()) for path in found]
    old = [(path, stat.size_bytes) for path, stat in stats if stat.modified < now - DAY_S]
    for path, _ in old if remove else ():
        path.remove()
    return old


def lifecycle(root: Path) -> dict[str, Any]:
    """The rules by which a bucket expires scratch and what killed uploads left, as its cloud takes them."""
    prefixes = {days: f"{_folder(root, days).key}/" for days in DAYS}
    if root.scheme == "gs":
        rules = [_google("Delete", days, prefix) for days, prefix in prefixes.items()]
        return {
            "rule": [
                *rules,
                _google("AbortIncompleteMultipartUpload", UPLOAD_DAYS, f"{root.key}/".lstrip("/")),
            ]
        }
    if root.scheme != "s3":
        raise ConfigError(
            f"{root} has no lifecycle rules: `lmlab gc` sweeps it. Name an s3:// or gs:// root."
        )
    rules = [_amazon(f"{days}d", prefix, Expiration={"Days": days}) for days, prefix in prefixes.items()]
    uploads = {"DaysAfterInitiation": UPLOAD_DAYS}
    return {
        "Rules": [
            *rules,
            _amazon("uploads", f"{root.key}/".lstrip("/"), AbortIncompleteMultipartUpload=uploads),
        ]
    }


def _google(action: str, days: int, prefix: str) -> dict[str, Any]:
    return {"action": {"type": action}, "condition": {"age": days, "matchesPrefix": [prefix]}}


def _amazon(name: str, prefix: str, **action: dict[str, int]) -> dict[str, Any]:
    return {"ID": f"lmlab-{name}", "Status": "Enabled", "Filter": {"Prefix": prefix}, **action}


def _rounded(days: float) -> int:
    if not days > 0:
        raise ConfigError(
            f"Scratch for {days} days would be gone before it is read. Ask for 1 to {DAYS[-1]}."
        )
    chosen = next((length for length in DAYS if length >= days), DAYS[-1])
    if chosen != days:
        warnings.warn(
            f"Scratch for {days:g} days is kept for {chosen}: there are 1-7, 14 and 30.", stacklevel=3
        )
    return chosen


def _folder(root: Path, days: int) -> Path:
    return root / FOLDER / f"ttl={days}d"


def _remove_empty(folder: Path, top: Path) -> None:
    while folder.is_local and folder != top and not folder.list():
        folder.local.rmdir()
        folder = folder.parent
