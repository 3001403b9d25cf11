"""Who ran what from which state of the code: captured once per process, handed to child processes.

A child records the provenance of the *launch*, not its own. Without git the code fields are None.
"""

import getpass
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from lmlab.core import environ

VARIABLE = "LMLAB_PROVENANCE"
GIT_TIMEOUT_S = 20.0
log = logging.getLogger(__name__)
_lock = threading.Lock()
_captured: "Provenance | None" = None


@dataclass(frozen=True)
class Provenance:
    """The state of the code and the person and machine behind a run."""

    commit: str | None
    """The commit that is checked out."""
    tree: str | None
    """Git's hash of the working tree as it is, uncommitted and untracked files included."""
    dirty: bool | None
    """Whether that tree differs from the commit's."""
    branch: str | None
    """The branch, None when detached."""
    argv: tuple[str, ...]
    """The command as it was typed."""
    user: str
    """Login name."""
    host: str
    """Machine name."""
    python: str
    """Version of the interpreter."""
    launched_at: float
    """Seconds since 1970, by the launching machine's clock."""


def capture() -> Provenance:
    """The provenance of this process's launch (cached: one git inspection a process)."""
    global _captured
    with _lock:
        if _captured is None:
            _captured = _inherited() or _inspect(Path.cwd())
        return _captured


def child_variable() -> dict[str, str]:
    """What a child's environment needs so that it records this launch."""
    return {VARIABLE: msgspec.json.encode(asdict(capture())).decode()}


def _inherited() -> Provenance | None:
    text = environ.get(VARIABLE)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Provenance)
    except msgspec.MsgspecError:
        # Somebody else's value: a run must not die of it, so it records itself.
        log.warning("%s does not hold a provenance record, so it is ignored.", VARIABLE)
        return None


def _inspect(folder: Path) -> Provenance:
    commit = _git(folder, "rev-parse", "HEAD")
    tree = _working_tree(folder) if commit else None
    clean = _git(folder, "rev-parse", "HEAD^{tree}") if commit else None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD") if commit else None
    return Provenance(
        commit=commit,
        tree=tree,
        dirty=tree != clean if commit else None,
        branch=branch,
        argv=tuple(sys.argv),
        user=login(),
        host=platform.node(),
        python=platform.python_version(),
        launched_at=time.time(),
    )


def _working_tree(folder: Path) -> str | None:
    """Hash the working tree through a private index: the user's own index is never touched."""
    index = _git(folder, "rev-parse", "--git-path", "index")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if index is None or top is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        private = Path(scratch) / "index"
        source = folder / index
        if source.exists():
            private.write_bytes(source.read_bytes())
        env = {"GIT_INDEX_FILE": str(private)}
        if _git(Path(top), "add", "-A", env=env) is None:
            return None
        return _git(Path(top), "write-tree", env=env)


def _git(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def login() -> str:
    """Who runs this process, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
