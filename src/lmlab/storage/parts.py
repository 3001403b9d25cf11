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
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from lmlab.core import environ, process
from lmlab.core.errors import BudgetExceeded, StorageError
from lmlab.storage import budget, stores
from lmlab.storage.paths import Path, Stat
from lmlab.storage.roots import choose_root
from lmlab.storage.scratch import scratch as scratch_place

_BLOCK = 4 << 20
_TRIES = 5
_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


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
    folder = (scratch or local_scratch("downloads")) / hashlib.sha256(identity.encode()).hexdigest()[:24]
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
        self, folder: pathlib.Path, source: Path, stat: Stat, count: int, stop: threading.Event | None
    ) -> None:
        self.path, self.halt = folder / "whole", threading.Event()
        self._source, self._etag, self._stop = source, stat.etag, stop
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
        position, failures = start + self._done(part), 0
        while position < end and not self.halt.is_set():
            check(self._stop, self._source)
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
