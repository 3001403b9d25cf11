"""The daily report of what was read across regions, and of the artifacts whose builders failed or died.

Made of the rows that `storage.budget` writes before each read, so nothing is guessed from logs.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from lmlab.artifacts import claims, history
from lmlab.core.units import format_bytes, format_seconds
from lmlab.storage import Path, budget
from lmlab.storage.budget import Transfer

SILENT_S = 3600.0
"""Long after a claim may be taken over: nobody waits for it, so nobody noticed."""
MENTIONS = 10
"""How many of an offender's largest reads are named."""


@dataclass(frozen=True)
class User:
    """What one person's runs read."""

    user: str
    bytes: int
    transfers: int
    largest: tuple[Transfer, ...]


@dataclass(frozen=True)
class Broken:
    """An artifact without a record, and nobody at work on it."""

    address: str
    state: str
    """failed, dead, corrupt, or silent: claimed from another machine, and no beat for long"""
    error: str
    """The first line of why."""


@dataclass(frozen=True)
class Egress:
    """The facts of one report."""

    begin: float
    end: float
    threshold_bytes: int
    total_bytes: int
    users: tuple[User, ...]
    """The one with the most bytes first."""
    offenders: tuple[User, ...]
    """Those above the threshold."""
    allowed: tuple[Transfer, ...]
    """Limits that somebody lifted."""
    broken: tuple[Broken, ...]


def egress(
    root: Path, now: float, hours: float = 24.0, threshold_bytes: int = budget.GIB, *, public: bool = False
) -> Egress:
    """The report of the last hours below a root; `public` tells no names, and no texts that may hold some."""
    begin = now - 3600 * hours
    found = [row for row in budget.rows(root, begin) if row.time <= now]
    hide: Callable[[str], str] = _hider({row.user for row in found}) if public else str
    rows = [replace(row, user=hide(row.user), path=hide(row.path)) for row in found]
    reads = [row for row in rows if row.kind == "read"]
    users = sorted((_user(u, reads) for u in {row.user for row in reads}), key=lambda user: -user.bytes)
    return Egress(
        begin=begin,
        end=now,
        threshold_bytes=threshold_bytes,
        total_bytes=sum(user.bytes for user in users),
        users=tuple(users),
        offenders=tuple(user for user in users if user.bytes > threshold_bytes),
        allowed=tuple(row for row in rows if row.kind == "allowed"),
        broken=tuple(
            Broken(hide(one.address), one.state, "" if public else one.error) for one in _broken(root, now)
        ),
    )


def lines(report: Egress) -> list[str]:
    """The report as a person reads it."""
    hours = (report.end - report.begin) / 3600
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.end))
    text = [f"{format_bytes(report.total_bytes)} read across regions in the {hours:g} hours until {until}"]
    text += [f"  {u.user}: {format_bytes(u.bytes)} in {u.transfers} transfers" for u in report.users]
    for user in report.offenders:
        text.append(f"{user.user} is above {format_bytes(report.threshold_bytes)}. The largest reads:")
        text += [
            f"  {format_bytes(row.bytes)} {row.path} ({row.src_region} to {row.dst_region}, run {row.run})"
            for row in user.largest
        ]
    if not report.offenders:
        text.append("No offenders today.")
    text += [f"{row.user} lifted a limit in run {row.run}: {row.path}" for row in report.allowed]
    for one in report.broken:
        text.append(f"{one.address} is {one.state}" + (f": {one.error}" if one.error else ""))
    return text


def _broken(root: Path, now: float) -> Iterator[Broken]:
    for one in history.entries(root):
        if one.state in ("failed", "dead", "corrupt"):
            yield Broken(one.address, one.state, one.error.partition("\n")[0])
        elif one.state == "running":
            files = [claims.claim_path(one.folder, one.attempt, kind) for kind in ("claim", "beat")]
            silent_s = now - max(path.stat().modified for path in files if path.exists())
            if silent_s > SILENT_S:
                owner = one.owner.shown if one.owner else "an unknown process"
                yield Broken(one.address, "silent", f"no beat of {owner} for {format_seconds(silent_s)}")


def _user(name: str, reads: Sequence[Transfer]) -> User:
    own = sorted((row for row in reads if row.user == name), key=lambda row: -row.bytes)
    return User(name, sum(row.bytes for row in own), len(own), tuple(own[:MENTIONS]))


def _hider(people: Collection[str]) -> Callable[[str], str]:
    """Replaces names of people, wherever they stand as a word, and the owners of `dev` artifacts."""
    numbers = {name: f"user-{number}" for number, name in enumerate(sorted(people), 1)}
    names = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in numbers) or "(?!)")
    return lambda text: re.sub(r"\busers/[^/]+", "users/…", names.sub(lambda m: numbers[m[0]], text))
