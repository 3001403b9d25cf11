"""Why a step failed, in at most six lines that lead with the user's own file."""

import errno
import linecache
import os
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path as LocalPath

from lmlab.core.errors import LmlabError, StorageError

_PACKAGE = str(LocalPath(__file__).parents[1])
_OURS = str(LocalPath(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_TAIL = 8_000


@dataclass(frozen=True)
class Failure:
    """How an attempt ended without a result."""

    kind: str
    """failed, stopped, killed or lost"""
    cause: str
    """One to six lines for people."""
    traceback: str = ""
    """The end of the traceback, for `lmlab show`."""
    exit_code: int = 1


def from_exception(error: BaseException) -> Failure:
    """Describe an exception that left a step's body."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [_headline(error)]
    own = [frame for frame in frames if _is_users(frame.filename)]
    other = [frame for frame in frames if not frame.filename.startswith(_OURS) and frame not in own]
    if own:
        lines.append(f"  at {_place(own[-1])}")
    if frames and other and frames[-1] is other[-1] and not isinstance(error, LmlabError):
        lines.append(f"  raised at {_place(other[-1])}")
    if error.__cause__ is not None and not isinstance(error, LmlabError):
        lines.append(f"  caused by {_headline(error.__cause__)}")
    text = "".join(traceback.format_exception(error))
    code = error.exit_code if isinstance(error, LmlabError) else 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        lines.append(
            "  The disk is full. Free some space, or choose another --root (XDG_STATE_HOME for output)."
        )
        code = StorageError.exit_code
    return Failure("failed", "\n".join(lines), text[-_TAIL:], code)


def stopped(how: str) -> Failure:
    """An attempt that was asked to stop."""
    return Failure("stopped", how, exit_code=130)


def _headline(error: BaseException) -> str:
    text = " ".join(str(error).split())
    shown = text if len(text) <= 500 else text[:499] + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    return not filename.startswith((*_LIBRARIES, _PACKAGE))


def _place(frame: traceback.FrameSummary) -> str:
    path = os.path.relpath(frame.filename)
    shown = frame.filename if path.startswith("..") else path
    line = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{shown}:{frame.lineno} in {frame.name}: {line[:120]}"
