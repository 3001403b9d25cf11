"""One large file in parallel byte ranges, each of which goes on where it was cut, and threads for many files.

The draft and how far each part got lie in scratch on this machine's disk, so a killed process loses nothing.
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
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from lmlab.core import environ, process
from lmlab.core.errors import BudgetExceeded, Refused, StorageError
from lmlab.storage import budget, stores
from lmlab.storage.paths import Path, Stat
from lmlab.storage.roots import choose_root
from lmlab.storage.scratch import scratch as scratch_place

_BLOCK = 64 << 20
"""Asked for at once; what comes of it is kept as it comes."""
_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Ranges:
    """How a file is cut into ranges, and how long one that does not move is tried."""

    count: int = 32
    """Contiguous ranges."""
    connections: int = 32
    """Open at once."""
    tries: int = 8
    """In a row without one more byte: a server that cuts often but moves is never given up."""
    first_wait_s: float = 0.2
    """Before the second try; doubled with each."""
    longest_wait_s: float = 120.0
    """Between two tries."""


RANGES = Ranges()


def download(
    source: Path,
    target: pathlib.Path,
    ranges: Ranges = RANGES,
    scratch: Path | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Fetch a file in parallel byte ranges, each going on where an earlier call was killed or cut off.

    What has come lies in scratch on this machine's disk; the file appears when it is whole.
    """
    stat, parts = source.stat(), ranges.count
    # Another boot starts anew: what the offsets say may not have reached the disk before it.
    identity = f"{source} {target} {stat} {parts} {process.boot_id()}"
    folder = (scratch or local_scratch("downloads")) / hashlib.sha256(identity.encode()).hexdigest()[:24]
    try:
        with locked(folder.local), _Parts(folder.local, source, stat, ranges, stop) as draft:
            with budget.prepaid(source, draft.missing):
                run_all(draft.fetch, range(parts), ranges.connections, draft.halt)
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


def local_scratch(name: str) -> Path:
    """Scratch of a week on this machine's disk, the same for each call."""
    root = choose_root()
    return scratch_place(7, root if root.is_local else Path(environ.cache_dir()), name)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Generator[None]:
    """One process at a time; the lock falls with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        yield


def check(stop: threading.Event | None, source: Path) -> None:
    """Raise StorageError once a copy is to stop."""
    if stop is not None and stop.is_set():
        raise StorageError(f"Reading {source} was stopped before its end. Run again to go on.")


class _Parts:
    """The draft of a download, and how far each of its parts got."""

    def __init__(
        self, folder: pathlib.Path, source: Path, stat: Stat, ranges: Ranges, stop: threading.Event | None
    ) -> None:
        self.path, self.halt, count = folder / "whole", threading.Event(), ranges.count
        self._source, self._etag, self._stop, self._ranges = source, stat.etag, stop, ranges
        self._bounds = [stat.size_bytes * part // count for part in range(count + 1)]
        self._draft = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        self._offsets = os.open(folder / "offsets", os.O_RDWR | os.O_CREAT, 0o666)
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
        failures, wait_s = 0, 0.0
        while (position := start + self._done(part)) < end and not self.halt.wait(wait_s):
            check(self._stop, self._source)
            wait_s = 0.0
            try:
                self._take(part, position, min(position + _BLOCK, end))
                failures = 0
            except (BudgetExceeded, Refused):
                raise
            except StorageError:
                if start + self._done(part) > position:
                    failures = 0
                    continue
                failures += 1
                if failures == self._ranges.tries:
                    raise
                wait_s = min(self._ranges.first_wait_s * 2 ** (failures - 1), self._ranges.longest_wait_s)

    def _take(self, part: int, position: int, end: int) -> None:
        """Keep what one request brings, as it comes."""
        first = position
        for block in self._source.chunks(position, end, self._etag):
            os.pwrite(self._draft, block, position)
            position += len(block)
            # After the bytes: a kill in between only fetches one block again.
            os.pwrite(self._offsets, struct.pack("<q", position - self._bounds[part]), 8 * part)
            if self.halt.is_set() or (self._stop is not None and self._stop.is_set()):
                return
        if position == first:
            raise StorageError(f"{self._source} gave no byte from {position} on. Try again later.")

    def _done(self, part: int) -> int:
        return struct.unpack("<q", os.pread(self._offsets, 8, 8 * part))[0]
