"""Where `print` goes while steps run in the runner's own process: into the attempt's log."""

import contextlib
import io
import sys
from collections.abc import Generator
from contextvars import ContextVar
from typing import TextIO

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
