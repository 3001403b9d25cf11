"""Copies that end whole or not at all, and go on where they were cut.

Files that commit others (records, manifests) are copied last, and deletions come after all copies.
"""

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import stores, tree
from lmlab.storage.parts import check, download, local_scratch, run_all
from lmlab.storage.paths import Path, Stat

COMMITS = (".artifact.json", "done.json", "MANIFEST.json", "manifest.json", "ledger.json")
"""Files whose presence says that the others are whole."""
READ_ONLY = ("hf", "https", "http")
_LARGE = 32 << 20
"""From this size on a file comes in parts."""

R = TypeVar("R")


@dataclass(frozen=True)
class Copied:
    """What a verified copy found equal at both ends."""

    files: int
    bytes: int
    present: int
    """How many of the files were there already."""
    sha256: str
    """Of the file, or over all names, sizes and contents of a folder."""


@dataclass(frozen=True)
class Action:
    """One file of a sync."""

    kind: str
    """copy or delete"""
    name: str
    bytes: int
    why: str


def publish(chunks: Iterable[bytes], target: Path, expected_bytes: int) -> None:
    """Write a file from a stream; it becomes visible only if the stream had the expected length.

    >>> publish([b"ab", b"c"], Path("memory://published/x"), expected_bytes=3)
    >>> Path("memory://published/x").read_text()
    'abc'
    """
    size = 0
    with target.open_writer() as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
        if size != expected_bytes:
            raise StorageError(
                f"The stream for {target} had {size} instead of {expected_bytes} bytes, so nothing was "
                "published. Fetch it again."
            )


def copy_file(source: Path, target: Path, size_bytes: int | None = None) -> None:
    """Copy one file: inside a store by the store itself, a large one from far away in resumable parts.

    A size that is known from a listing saves a request.
    """
    is_near = source.is_local or (source.scheme, source.bucket) == (target.scheme, target.bucket)
    if is_near or (source.size() if size_bytes is None else size_bytes) < _LARGE:
        source.copy_to(target)
    elif target.is_local:
        download(source, target.local)
    else:
        passing = local_scratch("passing") / hashlib.sha256(str((source, target)).encode()).hexdigest()[:24]
        download(source, passing.local)
        passing.copy_to(target)
        passing.remove()


def copy_all(source: Path, target: Path) -> dict[str, Stat]:
    """Copy a file, or all files of a folder into another one; what was copied."""
    check_ends(source, target)
    wanted = listing(source)
    _copy_each(source, target, wanted)
    return wanted


def move(source: Path, target: Path) -> dict[str, Stat]:
    """Move a file or a folder: the source goes once all of it has arrived."""
    check_ends(source, target)
    if source.scheme in READ_ONLY:
        raise ConfigError(f"{source} can only be read, so it can't be moved. Copy it (lmlab fs cp).")
    if source.is_dir() and target.is_dir():
        raise ConfigError(f"{target} is there already. Choose a new name, or {target}/ to move into it.")
    if source.is_local and target.is_local:
        moved = listing(source)
        target.parent.make_folder()
        try:
            shutil.move(source.local, target.local)
        except OSError as error:
            raise stores.translate(error, str(target), "written") from error
        return moved
    moved, arrived = copy_all(source, target), listing(target)
    lost = [
        name
        for name, stat in moved.items()
        if name not in arrived or arrived[name].size_bytes != stat.size_bytes
    ]
    if lost:
        raise StorageError(
            f"{lost[0] or target.name} did not arrive whole in {target}, so {source} stays. Try again."
        )
    source.remove_tree()
    return moved


def digests(place: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 of each file below a folder, dot-files too; for a file itself the one name is empty."""
    names = list(listing(place))
    return dict(zip(names, run_all(lambda name: tree.sha256(_join(place, name)), names), strict=True))


def whole_sha256(digests: tree.Listing) -> str:
    """The hash of the one file, or of a folder as a whole."""
    return digests[""][1] if "" in digests else tree.tree_sha256(digests)


def copy_hashed(source: Path, target: Path, stop: threading.Event | None = None) -> tuple[int, str]:
    """Copy one file, a large one from far away in parts; returns size and sha256 of what has arrived."""
    if target.is_local and not source.is_local and source.size() >= _LARGE:
        download(source, target.local, stop=stop)
        return tree.sha256(target)
    return _pass_on(source, target, stop)


def verified_copy(source: Path, target: Path) -> Copied:
    """Copy a file or a folder, and hash both ends; what is there already and equal is not sent again.

    >>> Path("memory://here/a").write_text("abc")
    >>> verified_copy(Path("memory://here/a"), Path("memory://there/a")).sha256[:8]
    'ba7816bf'
    """
    check_ends(source, target)
    wanted, there = listing(source), listing(target)

    def one(name: str) -> tuple[tuple[int, str], bool]:
        origin, place = _join(source, name), _join(target, name)
        if name in there and there[name].size_bytes == wanted[name].size_bytes:
            digest = tree.sha256(place)
            if digest == tree.sha256(origin):
                return digest, True
        sent, arrived = _pass_on(origin, place), tree.sha256(place)
        if sent != arrived:
            place.remove()
            raise StorageError(
                f"{place} is not what was sent from {origin}, so it was removed. Copy it again."
            )
        return arrived, False

    done = commits_last(one, list(wanted))
    proved = {name: digest for name, (digest, _) in done.items()}
    total, present = sum(size for size, _ in proved.values()), sum(found for _, found in done.values())
    return Copied(len(done), total, present, whole_sha256(proved))


def sync(
    source: Path, target: Path, *, delete: bool = False, dry_run: bool = False, checksum: bool = False
) -> list[Action]:
    """Make `target` hold what `source` holds; with `delete` nothing else, once every copy has succeeded.

    A file is copied if it is missing, differs in size or is newer in the source; with `checksum`, if its
    content differs.

    >>> Path("memory://old/data/a").write_text("abc")
    >>> [action.name for action in sync(Path("memory://old/data"), Path("memory://new/data"))]
    ['a']
    """
    check_ends(source, target)
    wanted, there = listing(source), listing(target)
    if delete and not wanted:
        raise ConfigError(
            f"{source} holds no files, so a sync would empty {target}. Remove it if you mean to."
        )
    reasons = {name: _why(wanted[name], there.get(name)) for name in wanted}
    if checksum:
        alike = [name for name, why in reasons.items() if why in ("", "newer")]
        equal = run_all(lambda n: tree.sha256(_join(source, n)) == tree.sha256(_join(target, n)), alike)
        reasons |= {name: "" if same else "content" for name, same in zip(alike, equal, strict=True)}
    copies = [Action("copy", name, wanted[name].size_bytes, why) for name, why in reasons.items() if why]
    extra = [Action("delete", n, there[n].size_bytes, "not there") for n in there if n not in wanted]
    if not dry_run:
        _copy_each(source, target, {action.name: wanted[action.name] for action in copies})
        if delete:
            run_all(lambda action: _join(target, action.name).remove(), extra)
    return [*copies, *(extra if delete else [])]


def listing(place: Path) -> dict[str, Stat]:
    """The files below a folder by name; for a file itself the one name is empty."""
    found = {path.relative_to(place): stat for path, stat in place.walk_stats()} if place.is_dir() else {}
    return {"": place.stat()} if not found and not place.is_dir() and place.exists() else found


def check_ends(source: Path, target: Path) -> None:
    """Raise ConfigError for a copy onto itself, into its own folder, or to where nothing can be written."""
    if target.scheme in READ_ONLY:
        raise ConfigError(f"{target} can only be read. Copy to a folder, s3:// or gs://.")
    if source == target or f"{target}/".startswith(f"{source}/"):
        where = "itself" if source == target else "a folder inside of it"
        raise ConfigError(f"{source} can't be copied into {where} ({target}). Choose another target.")


def commits_last(work: Callable[[str], R], names: Sequence[str]) -> dict[str, R]:
    """Do the work for each file of a folder, for those that commit the others once all these are done."""
    last = [name for name in names if name.rpartition("/")[2] in COMMITS]
    first = [name for name in names if name not in set(last)]
    return {
        name: result
        for group in (first, last)
        for name, result in zip(group, run_all(work, group), strict=True)
    }


def _copy_each(source: Path, target: Path, files: dict[str, Stat]) -> None:
    def one(name: str) -> None:
        copy_file(_join(source, name), _join(target, name), files[name].size_bytes)

    commits_last(one, list(files))


def _pass_on(source: Path, target: Path, stop: threading.Event | None = None) -> tuple[int, str]:
    """Stream one file through this process; returns size and sha256 of what was sent."""
    check(stop, source)  # an empty file has no block to ask at
    size, hasher = source.size(), hashlib.sha256()

    def passing() -> Iterator[bytes]:
        for block in source.chunks():
            check(stop, source)
            hasher.update(block)
            yield block

    publish(passing(), target, size)
    return size, hasher.hexdigest()


def _why(wanted: Stat, there: Stat | None) -> str:
    if there is None:
        return "missing"
    if wanted.size_bytes != there.size_bytes:
        return "size"
    # S3 tells whole seconds.
    return "newer" if int(wanted.modified) > there.modified else ""


def _join(folder: Path, name: str) -> Path:
    return folder / name if name else folder
