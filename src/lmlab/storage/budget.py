"""What one run may read from other regions: 10 GiB over all its processes, charged before the first byte.

Every process keeps one object, `{root}/.transfers/{run}/{process}.json`. It reserves there, then sums what
all of the run's objects reserve, and over the limit takes its reservation back and refuses: neither 32 ranks
nor a restart multiply the limit, without lock or server. The rows are the facts of the egress report.
"""

import atexit
import contextlib
import functools
import os
import platform
import random
import secrets
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from lmlab.core import environ, provenance
from lmlab.core.errors import BudgetExceeded, ConfigError, InputError, StorageError
from lmlab.core.units import format_bytes
from lmlab.storage import regions

if TYPE_CHECKING:
    from lmlab.storage.paths import Path, Stat

FOLDER = ".transfers"
GIB = 1 << 30
VARIABLE = "LMLAB_TRANSFER_BUDGET_GIB"
DEFAULT_GIB = 10.0
_BLOCK = 16 << 20
"""Reserved at least, so that many small reads cost one look at the other processes."""
_TRIES = 6


@dataclass(frozen=True)
class Transfer:
    """What one process read of one file across regions within an hour, or one explicit permission."""

    time: float
    """Of the last read, in seconds since 1970."""
    user: str
    run: str
    src_region: str
    dst_region: str
    path: str
    bytes: int
    kind: str
    """read, or allowed: somebody lifted a limit (`path` says how, no bytes)"""


@dataclass
class Scope:
    """A limit of its own for the reads of one block, below that of the run."""

    limit_bytes: int
    spent_bytes: int = 0


@dataclass(frozen=True)
class Account:
    """The content of one process's object."""

    reserved: int = 0
    rows: tuple[Transfer, ...] = ()


_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("scopes", default=())
_is_paid: ContextVar[bool] = ContextVar("is_paid", default=False)
_lock = threading.RLock()
_ledgers: dict[tuple[int, "Path", str], "_Ledger"] = {}


def applies(place: "Path") -> bool:
    """Whether bytes read from here cross into this machine's region; microseconds."""
    here = regions.current()
    if not here.prefixes or _is_paid.get():
        return False
    source = here.region_of(str(place))
    return (
        source is not None and not regions.same_region(source, here.own) and f"/{FOLDER}/" not in str(place)
    )


def charge(place: "Path", size_bytes: int) -> None:
    """Account for bytes about to be read from a place; nothing where they stay inside the region.

    Called by every read in `storage`; who reads past it (tensorstore, DuckDB) calls it first.
    Raises BudgetExceeded, and counts nothing, if they would pass the limit.
    """
    if size_bytes <= 0 or not applies(place):
        return
    with _lock:
        for scope in _scopes.get():
            if scope.spent_bytes + size_bytes > scope.limit_bytes:
                raise _refusal(place, size_bytes, scope.limit_bytes, scope.spent_bytes)
        _ledger().charge(place, size_bytes)
        for scope in _scopes.get():
            scope.spent_bytes += size_bytes


@contextlib.contextmanager
def prepaid(place: "Path", size_bytes: int) -> Generator[None]:
    """Charge once for all that the block reads, in this thread and in those that run in its context."""
    charge(place, size_bytes)
    token = _is_paid.set(True)
    try:
        yield
    finally:
        _is_paid.reset(token)


@contextlib.contextmanager
def limited(gib: float) -> Generator[Scope]:
    """Within the block at most so much may be read from other regions, whatever the run may.

    >>> with limited(gib=1) as scope:
    ...     scope.limit_bytes
    1073741824
    """
    scope = Scope(int(gib * GIB))
    token = _scopes.set((*_scopes.get(), scope))
    try:
        yield scope
    finally:
        _scopes.reset(token)


def note(what: str, source: str = "", target: str = "") -> None:
    """Record that somebody lifted a limit (`--allow-cross-region`): the egress report names it."""
    with _lock:
        ledger = _ledger()
        ledger.add(ledger.row(what, source, target, 0, "allowed"))
        ledger.write()


def rows(root: "Path", since: float = 0.0) -> list[Transfer]:
    """All transfers recorded below a root from a time on, the oldest first."""
    flush(root)
    # A file is as young as its last row; a day is more than two clocks differ by.
    files = [(path, stat) for path, stat in (root / FOLDER).walk_stats() if stat.modified > since - 86_400]
    with ThreadPoolExecutor(1 if root.is_local else 32) as pool:
        accounts = list(pool.map(lambda file: _read(*file), files))
    found = [row for account in accounts for row in account.rows if row.time >= since]
    return sorted(found, key=lambda row: row.time)


@atexit.register
def flush(root: "Path | None" = None) -> None:
    """Write the rows that are only in memory, of one root or of all."""
    with _lock:
        for (process, place, _), ledger in _ledgers.items():
            if process == os.getpid() and ledger.is_ahead and root in (None, place):
                # An unwritable row must not fail a process that ends: its bytes stay reserved.
                with contextlib.suppress(StorageError):
                    ledger.write()


def limit_bytes() -> float:
    """What one run may read: LMLAB_TRANSFER_BUDGET_GIB, else 10 GiB; `inf` is no limit."""
    text = environ.get(VARIABLE) or str(DEFAULT_GIB)
    try:
        gib = float(text)
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise ConfigError(f"{VARIABLE}={text} is no amount. Give GiB, such as 50, or inf for no limit.")
    return gib * GIB


class _Ledger:
    """This process's account in one run."""

    def __init__(self, folder: "Path", run: str) -> None:
        self._folder, self._run, self._user = folder, run, environ.get("LMLAB_USER") or provenance.login()
        self._path = folder / f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.json"
        self._reserved = self._spent = 0
        self._rows: dict[tuple[str, int], Transfer] = {}
        self.is_ahead = False
        """Whether rows are only in memory."""

    def charge(self, place: "Path", size: int) -> None:
        here = regions.current()
        row = self.row(str(place), here.region_of(str(place)) or "", here.own or "outside", size, "read")
        if self._spent + size > self._reserved:
            self._reserve(place, row)
        self._spent += size
        self.add(row)

    def row(self, path: str, source: str, target: str, size: int, kind: str) -> Transfer:
        return Transfer(time.time(), self._user, self._run, source, target, path, size, kind)

    def add(self, row: Transfer) -> None:
        # By hour, so that a report of one day does not count what a long process read before.
        key = (row.path, int(row.time // 3600))
        known = self._rows.get(key)
        self._rows[key] = replace(row, bytes=row.bytes + known.bytes) if known else row
        self.is_ahead = True

    def write(self, *coming: Transfer) -> None:
        account = Account(self._reserved, (*self._rows.values(), *coming))
        self._path.write_bytes(msgspec.json.encode(account))
        self.is_ahead = False

    def _reserve(self, place: "Path", row: Transfer) -> None:
        limit, size = limit_bytes(), row.bytes
        if limit > DEFAULT_GIB * GIB and not self._rows:
            self.add(self.row(f"{VARIABLE}={environ.get(VARIABLE)}", "", "", 0, "allowed"))
        seen = others = 0
        for attempt in range(_TRIES):
            if self._spent + size > limit:
                break
            # With its row: what a killed process was reading is on record.
            others = self._hold(self._spent + max(size, _BLOCK), row)
            if others + self._reserved <= limit:
                return
            if others + self._spent + size <= limit:
                self._hold(self._spent + size, row)
                return
            others = self._hold(self._spent)
            if others == seen:
                break
            # The others may be taking back what they reserved in the same moment as this process.
            seen = others
            time.sleep(random.uniform(0.02, 0.1) * 2**attempt)
        raise _refusal(place, size, limit, others + self._spent)

    def _hold(self, amount: int, *coming: Transfer) -> int:
        """Reserve so much in all; returns what the run's other processes hold after that."""
        before, self._reserved = self._reserved, amount
        try:
            self.write(*coming)
        except StorageError:
            self._reserved = before
            raise
        others = [(path, stat) for path, stat in self._folder.children() if stat and path != self._path]
        return sum(_read(path, stat).reserved for path, stat in others)


def _ledger() -> _Ledger:
    from lmlab.storage.roots import choose_root

    root, run = choose_root(), environ.run_id()
    key = (os.getpid(), root, run)
    if key not in _ledgers:
        _ledgers[key] = _Ledger(root / FOLDER / run, run)
    return _ledgers[key]


@functools.lru_cache(4096)
def _read(path: "Path", _version: "Stat") -> Account:
    """One version of an account: most never change again."""
    try:
        return msgspec.json.decode(path.read_if_present() or b"{}", type=Account)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is no account of transfers ({error}). Remove it to go on without."
        ) from error


def _refusal(place: "Path", size: int, limit: float, spent: float) -> BudgetExceeded:
    source, own = regions.region_of(place), regions.own_region() or "a machine outside of it"
    return BudgetExceeded(
        f"Reading {format_bytes(size)} of {place} from {source} into {own} would pass the "
        f"{format_bytes(limit)} that this run may transfer ({format_bytes(spent)} are spent), so nothing was "
        f"read. Run where the data are, mirror less, or set {VARIABLE} to what you will pay for."
    )
