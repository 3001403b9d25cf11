"""Which files fit a pattern: `*`, `?` and `[…]` within a name, `**` across folders, `{a,b}` for either."""

import re
from fnmatch import fnmatchcase

from lmlab.storage.paths import Children, Path


def matches(folder: Path, pattern: str) -> list[Path]:
    """Files and folders below that fit, sorted."""
    return [path for path, _ in matching(folder, pattern)]


def matching(folder: Path, pattern: str) -> Children:
    """The same with what the listing tells of each file; of a folder None."""
    found = [match for each in _alternatives(pattern) for match in _below(folder, each.split("/"))]
    return sorted(dict(found).items())


def _alternatives(pattern: str) -> list[str]:
    inner = re.search(r"\{([^{}]*)\}", pattern)
    if not inner:
        return [pattern]
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    return [done for choice in inner[1].split(",") for done in _alternatives(before + choice + after)]


def _below(folder: Path, parts: list[str]) -> Children:
    first, *rest = parts
    if first == "**":
        return [
            (path, stat)
            for path, stat in folder.walk_stats()
            if _fits(path.relative_to(folder).split("/"), parts)
        ]
    if not re.search(r"[*?[]", first):
        child = folder / first
        if rest:
            return _below(child, rest)
        return [(child, None if child.is_dir() else child.stat())] if child.exists() else []
    found = [(path, stat) for path, stat in folder.children() if _fits([path.name], [first])]
    if not rest:
        return list(found)
    return [match for path, stat in found if stat is None for match in _below(path, rest)]


def _fits(names: list[str], parts: list[str]) -> bool:
    if not parts or not names:
        return not names and set(parts) <= {"**"}
    is_shown = not names[0].startswith(".")
    if parts[0] == "**":
        return _fits(names, parts[1:]) or (is_shown and _fits(names[1:], parts))
    is_shown = is_shown or parts[0].startswith(".")
    return is_shown and fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])
