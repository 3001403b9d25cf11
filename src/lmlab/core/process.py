"""Child processes that live in their own group and never outlive their owner.

A child is killed with its whole group: by us (`kill_group`), or by the kernel when the thread that
started it is gone (PR_SET_PDEATHSIG), which is what makes `kill -9` of a runner clean.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1

# The child sets this up itself, right after exec: preexec_fn would run Python between fork and exec,
# which can deadlock in a process with threads.
_WATCH = (
    "import ctypes, os, sys; owner = int(sys.argv[1]); "
    "ctypes.CDLL(None).prctl(1, 9); os.getppid() == owner or os._exit(1); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)

Stream = int | IO[bytes] | None


def start(
    argv: Sequence[str | Path],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `argv` as the leader of a new process group (and session).

    A Python child should call `die_with_owner(pid)` first thing; for any other program use `guarded`.
    """
    return subprocess.Popen(
        [str(part) for part in argv],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=None if env is None else dict(env),
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


def guarded(argv: Sequence[str | Path]) -> list[str]:
    """`argv` wrapped so that the program dies with the process that starts it (one bare Python start)."""
    return [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), *(str(part) for part in argv)]


def die_with_owner(owner_pid: int) -> None:
    """Ask the kernel to kill this process when its owner dies; exit at once if it already has (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner_pid:
        os._exit(1)


def kill_group(child: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """SIGTERM to the child's whole group, then SIGKILL after `grace_s`; returns when the child is gone."""
    signal_group(child, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
    deadline = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    # Grandchildren may have outlived the leader, so the group is always killed.
    signal_group(child, signal.SIGKILL)
    child.wait()


def signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the child's group; a group that is gone is fine."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether process `pid` is the same one that started at `started_ticks` (pids are reused)."""
    return start_ticks(pid) == started_ticks


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Names this boot of this machine: process ids mean something only within it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"
