"""Copies that end whole or not at all, and go on where they were cut.

A large file from far away comes in 32 byte ranges, each of which remembers how far it got. Files that commit
others (records, manifests) are copied last, and deletions come after all copies.
"""

import contextlib
import contextvars
import fcntl
import hashlib
import os
import pathlib
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from lmlab.core import environ, process
from lmlab.core.errors import BudgetExceeded, ConfigError, StorageError
from lmlab.storage import budget, stores, tree
from lmlab.storage.paths import Path, Stat
from lmlab.storage.roots import choose_root
from lmlab.storage.scratch import scratch as scratch_place

COMMITS = (".artifact.json", "done.json", "MANIFEST.json", "manifest.json", "ledger.json")
"""Files whose presence says that the others are whole."""
READ_ONLY = ("hf", "https", "http")
_BLOCK = 4 << 20
_LARGE = 32 << 20
"""From this size on a file comes in parts."""
_TRIES = 5
_THREADS = 16

T = TypeVar("T")
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
    """Write a file from a stream; it becomes visible only if the stream had the expected length."""
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


def download(
    source: Path,
    target: pathlib.Path,
    parts: int = 32,
    scratch: Path | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Fetch a file in parallel byte ranges, each going on where an earlier call was killed or cut off.

    What has come lies in scratch on this machine's disk; the file appears when it is whole.
    """
    stat = source.stat()
    # Another boot starts anew: what the offsets say may not have reached the disk before it.
    identity = f"{source} {target} {stat} {parts} {process.boot_id()}"
    folder = (scratch or _local_scratch("downloads")) / hashlib.sha256(identity.encode()).hexdigest()[:24]
    try:
        with locked(folder.local), _Parts(folder.local, source, stat, parts, stop) as draft:
            with budget.prepaid(source, draft.missing):
                run_all(draft.fetch, range(parts), parts, draft.halt)
            is_same = source.stat() == stat
            if is_same:
                with Path(target).writer() as place:
                    shutil.move(draft.path, place)
            folder.remove_tree()
    except OSError as error:
        raise stores.translate(error, str(target), "written") from error
    if not is_same:
        raise StorageError(
            f"{source} changed while it was downloaded, so its parts don't fit. Fetch it again."
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
        passing = _local_scratch("passing") / hashlib.sha256(str((source, target)).encode()).hexdigest()[:24]
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
    """Copy a file or a folder, and hash both ends; what is there already and equal is not sent again."""
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


def run_all(
    work: Callable[[T], R], items: Sequence[T], threads: int = _THREADS, halt: threading.Event | None = None
) -> list[R]:
    """Do the work for each item, in threads that share this one's context; a failure leaves what waits."""
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(contextvars.copy_context().run, work, item) for item in items]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        finally:
            if halt is not None:
                halt.set()
            for future in futures:
                future.cancel()


class _Parts:
    """The draft of a download, and how far each of its parts got."""

    def __init__(
        self, folder: pathlib.Path, source: Path, stat: Stat, count: int, stop: threading.Event | None
    ) -> None:
        self.path, self.halt = folder / "whole", threading.Event()
        self._source, self._etag, self._stop = source, stat.etag, stop
        self._bounds = [stat.size_bytes * part // count for part in range(count + 1)]
        self._draft = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self._offsets = os.open(folder / "offsets", os.O_RDWR | os.O_CREAT)
        os.truncate(self._offsets, 8 * count)
        if stat.size_bytes and sys.platform == "linux":
            # A disk that is too small says so now, and not after the last but one part.
            os.posix_fallocate(self._draft, 0, stat.size_bytes)
        else:
            os.truncate(self._draft, stat.size_bytes)

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._draft)
        os.close(self._offsets)

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return self._bounds[-1] - sum(self._done(part) for part in range(len(self._bounds) - 1))

    def fetch(self, part: int) -> None:
        """Bring one part to its end."""
        start, end = self._bounds[part : part + 2]
        position, failures = start + self._done(part), 0
        while position < end and not self.halt.is_set():
            _check(self._stop, self._source)
            try:
                block = self._source.read_range(position, min(_BLOCK, end - position), self._etag)
            except StorageError as error:
                failures += 1
                if failures == _TRIES or isinstance(error, BudgetExceeded):
                    raise
                time.sleep(0.1 * 2**failures)
                continue
            if not block:
                raise StorageError(f"{self._source} ends at byte {position}, {end} were expected. Try again.")
            os.pwrite(self._draft, block, position)
            position, failures = position + len(block), 0
            # After the bytes: a kill in between only fetches one block again.
            os.pwrite(self._offsets, struct.pack("<q", position - start), 8 * part)

    def _done(self, part: int) -> int:
        return struct.unpack("<q", os.pread(self._offsets, 8, 8 * part))[0]


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Generator[None]:
    """One process at a time; the lock falls with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        yield


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
    size, hasher = source.size(), hashlib.sha256()

    def passing() -> Iterator[bytes]:
        for block in source.chunks():
            _check(stop, source)
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


def _local_scratch(name: str) -> Path:
    root = choose_root()
    return scratch_place(7, root if root.is_local else Path(environ.cache_dir()), name)


def _check(stop: threading.Event | None, source: Path) -> None:
    if stop is not None and stop.is_set():
        raise StorageError(f"Reading {source} was stopped before its end. Run again to go on.")
