"""Where an attempt's output goes: what inline steps print, and the log of a step's own process."""

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Generator
from contextvars import ContextVar
from typing import IO, Protocol, TextIO

from lmlab.core import environ
from lmlab.core.errors import StorageError
from lmlab.storage import Path

_captured: ContextVar[io.StringIO | None] = ContextVar("captured", default=None)


class _Router(io.TextIOBase):
    """stdout for everybody but an inline step, whose context names its own buffer."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen

    def write(self, text: str, /) -> int:
        return (_captured.get() or self._screen).write(text)

    def flush(self) -> None:
        self._screen.flush()

    def isatty(self) -> bool:
        return _captured.get() is None and self._screen.isatty()

    def fileno(self) -> int:
        return self._screen.fileno()


@contextlib.contextmanager
def routed() -> Generator[None]:
    """While the block runs, `captured()` blocks in other threads keep their output to themselves."""
    screen = sys.stdout
    sys.stdout = _Router(screen)
    try:
        yield
    finally:
        sys.stdout = screen


@contextlib.contextmanager
def captured() -> Generator[io.StringIO]:
    """Collect what this context prints."""
    buffer = io.StringIO()
    token = _captured.set(buffer)
    try:
        yield buffer
    finally:
        _captured.reset(token)


class Sink(Protocol):
    """Where a process prints, and how to read the end of it."""

    file: IO[bytes]

    def end(self, size: int) -> bytes:
        """The last bytes written."""
        ...


class Spool:
    """The open file that a step's process prints into: the log itself, or a nameless one for a remote log."""

    _SHOWN = 4 << 20

    def __init__(self, log: Path) -> None:
        self._log, self._shared, self._lock = log, 0, threading.Lock()
        if log.is_local:
            self.file: IO[bytes] = log.local.open("a+b")
            return
        folder = environ.state_dir() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.file = tempfile.TemporaryFile("a+b", dir=folder)  # noqa: SIM115 - closed by close()

    def end(self, size: int) -> bytes:
        """The last bytes written."""
        number = self.file.fileno()
        return os.pread(number, size, max(0, os.fstat(number).st_size - size))

    def share(self, limit: int = _SHOWN) -> None:
        """Send a remote root the end of what is new, so that a hundred megabytes don't go anew each time."""
        # The log is for people: a store that fails for a moment must not end the step.
        with self._lock, contextlib.suppress(StorageError):
            if self.file.closed or self._log.is_local:
                return
            number, size = self.file.fileno(), os.fstat(self.file.fileno()).st_size
            if size > (self._shared if limit == self._SHOWN else 0):
                self._shared = size
                with self._log.open_writer() as sink:
                    for start in range(max(0, size - limit), size, self._SHOWN):
                        sink.write(os.pread(number, self._SHOWN, start))

    def close(self) -> None:
        """The process has ended: send all of it."""
        with self.file:
            self.share(limit=sys.maxsize)
