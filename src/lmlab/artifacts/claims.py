"""Claims: who is building an artifact. Numbered files written by put-if-absent, a heartbeat, and fencing.

`.claims/00000003.claim` says who, `.claims/00000003.beat` that they are alive or how they ended. The highest
number owns the artifact; a lower one may never commit. Clocks of two machines are never compared: a waiter
watches, by its own monotonic clock, whether the owner's counter moves.
"""

import contextlib
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as LocalPath
from typing import Any

import msgspec

from lmlab.core import environ, process
from lmlab.core.errors import ClaimLost, LmlabError, StorageError
from lmlab.storage import Path

FOLDER = ".claims"


@dataclass(frozen=True)
class Timing:
    """How fast the protocol notices a death."""

    beat_s: float = 30.0
    """Seconds between heartbeats."""
    stale_s: float = 90.0
    """A claim whose counter has not moved for so long may be taken over."""
    poll_s: float = 0.25
    """Seconds between looks of a waiter."""

    @property
    def lost_s(self) -> float:
        """Without a successful beat for so long, an owner stops itself, before others may take over."""
        return 0.7 * self.stale_s


@dataclass(frozen=True)
class Owner:
    """The content of a claim file."""

    token: str
    host: str
    scope: str
    """Boot and process namespace: only within it does a pid mean something."""
    pid: int
    started_ticks: int | None
    run: str
    config: dict[str, Any]
    """The recipe being built: leftovers are resumed only under the same one."""
    at: float
    """Seconds since 1970 by the owner's clock; shown, never compared."""

    @property
    def shown(self) -> str:
        """For people."""
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Beat:
    """The content of a beat file."""

    counter: int = 0
    state: str = "running"
    """running, done, failed or stopped"""
    error: str = ""
    """The first cause, one to six lines."""
    traceback: str = ""
    """The end of it."""


@dataclass
class Claim:
    """A claim that this process holds."""

    folder: Path
    """The artifact's."""
    number: int
    token: str
    previous: Owner | None
    """Who held the claim before, if anybody."""
    timing: Timing
    after_beat: Callable[[], None] = lambda: None
    """Called by the heartbeat: shares the attempt's output."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when this process may no longer commit."""
    beats: int = 0
    renewed: float = field(default_factory=time.monotonic)
    """When the last beat that got through was sent: a waiter can't have seen it before."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a beat is on its way."""

    def path(self, suffix: str) -> Path:
        """`.claims/00000003.log` and its siblings."""
        return claim_path(self.folder, self.number, suffix)

    def is_lost(self) -> bool:
        """Whether somebody took over, or may soon. Needs no request, so a hanging store can't hide it."""
        if time.monotonic() - self.renewed > self.timing.lost_s:
            self.lost.set()
        return self.lost.is_set()

    def check(self) -> None:
        """Raise ClaimLost if this claim may no longer commit."""
        if self.is_lost() or newest(self.folder) != self.number:
            raise ClaimLost(
                f"Claim {self.number} of {self.folder} is lost: another process took over, or no beat got"
                f" through for {self.timing.lost_s:.0f} s. Its work is discarded; run again for the result."
            )


def claim_path(folder: Path, number: int, suffix: str) -> Path:
    """The file of one attempt."""
    return folder / FOLDER / f"{number:08d}.{suffix}"


def newest(folder: Path) -> int:
    """The highest claim number, 0 if nobody ever claimed."""
    names = [path.name for path in (folder / FOLDER).list()]
    return max((int(name[:8]) for name in names if name.endswith(".claim") and name[:8].isdigit()), default=0)


def read_owner(folder: Path, number: int) -> Owner | None:
    """Who holds a claim; None if the file is gone or unreadable."""
    return _decode(claim_path(folder, number, "claim"), Owner)


def read_beat(folder: Path, number: int) -> Beat:
    """The last sign of life; a fresh one if there is none yet."""
    return _decode(claim_path(folder, number, "beat"), Beat) or Beat()


def is_gone(owner: Owner | None) -> bool:
    """Whether the owner certainly no longer runs: a process of this boot of this host that has ended."""
    if owner is None or owner.host != platform.node() or owner.scope != _scope():
        return False
    return owner.started_ticks is None or not process.is_alive(owner.pid, owner.started_ticks)


def acquire(
    folder: Path,
    recipe: dict[str, Any],
    *,
    is_done: Callable[[], bool],
    timing: Timing,
    stopping: threading.Event,
    waiting: Callable[[Owner | None], None] | None,
    is_fresh: bool = False,
    watch: "Watch | None" = None,
) -> Claim | None:
    """Claim an artifact, waiting for a living owner; None once it `is_done` or when `stopping`.

    Without `waiting`, which hears of the owner, it is also None when somebody lives who holds the claim.
    `is_done` is asked again after the claim is won: an owner may have committed in between. `is_fresh` says
    that there was neither record nor claim when somebody looked, which saves looking again; `watch` remembers
    what earlier calls saw of the owner.
    """
    watch, pause_s = watch or Watch(timing), timing.poll_s
    while not stopping.is_set():
        if not is_fresh and is_done():
            return None
        top = 0 if is_fresh else newest(folder)
        is_fresh = False
        owner = read_owner(folder, top) if top else None
        if top and not watch.is_over(folder, top, owner):
            if waiting is None:
                return None
            waiting(owner)
            stopping.wait(pause_s)
            pause_s = min(1.5 * pause_s, max(timing.poll_s, timing.stale_s / 100))
            continue
        mine = _owner(recipe)
        claim = Claim(folder, top + 1, mine.token, owner, timing)
        if not claim.path("claim").create_bytes(msgspec.json.encode(mine)):
            continue
        if is_done():
            finish(claim, Beat(state="done"))
            return None
        return claim
    return None


def finish(claim: Claim, beat: Beat) -> None:
    """The final beat. Call it only when no heartbeat for this claim runs any more."""
    final = Beat(claim.beats + 1, beat.state, beat.error, beat.traceback)
    # The record is what counts: an unwritable last beat only makes the next owner wait.
    with contextlib.suppress(StorageError):
        claim.path("beat").write_bytes(msgspec.json.encode(final))


class Keeper:
    """The heartbeat of all claims of this process: one thread, started with the first claim."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._claims: dict[str, Claim] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, claim: Claim) -> None:
        """Keep a claim alive from now on."""
        with self._lock:
            self._claims[claim.token] = claim
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()

    def remove(self, claim: Claim) -> None:
        """Stop beating for a claim; when this returns no beat is on its way."""
        with self._lock:
            self._claims.pop(claim.token, None)
        with claim.lock:
            return

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Six looks a beat: one that failed is soon tried again.
        while not self._closed.wait(self._timing.beat_s / 6):
            with self._lock:
                held = list(self._claims.values())
            for claim in held:
                is_due = time.monotonic() - claim.renewed >= self._timing.beat_s
                if not claim.is_lost() and is_due and not claim.lock.locked():
                    # A thread each: a request that hangs must not silence the other claims.
                    threading.Thread(target=self._beat, args=(claim,), daemon=True).start()

    def _beat(self, claim: Claim) -> None:
        with claim.lock:
            sent = time.monotonic()
            if claim.token not in self._claims or claim.is_lost():
                return
            claim.beats += 1
            # A store that fails for a moment is no loss; after `lost_s` of it, the claim is.
            with contextlib.suppress(LmlabError):
                if newest(claim.folder) > claim.number:
                    claim.lost.set()
                    return
                claim.path("beat").write_bytes(msgspec.json.encode(Beat(claim.beats)))
                claim.renewed = sent
        # Not under the lock: a slow upload of the log must not delay the next beat.
        claim.after_beat()


class Watch:
    """Watches the owner of one artifact by this process's own clock."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._seen: tuple[int, int] = (0, -1)
        self._since = 0.0

    def is_over(self, folder: Path, number: int, owner: Owner | None) -> bool:
        """Whether the claim ended, its process died, or its counter stood still for too long."""
        beat = read_beat(folder, number)
        if beat.state != "running" or is_gone(owner):
            return True
        if (number, beat.counter) != self._seen:
            self._seen, self._since = (number, beat.counter), time.monotonic()
        return time.monotonic() - self._since > self._timing.stale_s


def _owner(recipe: dict[str, Any]) -> Owner:
    return Owner(
        token=secrets.token_hex(8),
        host=platform.node(),
        scope=_scope(),
        pid=os.getpid(),
        started_ticks=_own_ticks(),
        run=environ.run_id(),
        config=recipe,
        at=time.time(),
    )


@cache
def _own_ticks() -> int | None:
    return process.start_ticks(os.getpid())


@cache
def _scope() -> str:
    namespace = LocalPath("/proc/self/ns/pid")
    return f"{process.boot_id()} {namespace.readlink() if namespace.exists() else ''}".strip()


def _decode(path: Path, kind: type[Any]) -> Any:
    data = path.read_if_present()
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return None
