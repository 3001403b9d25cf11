"""What the artifacts of a root take and took: bytes on the store and hours of work, by type and by person."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lmlab.artifacts import history
from lmlab.artifacts.records import Record
from lmlab.core.units import format_bytes, format_seconds
from lmlab.storage import Path

LARGEST = 10


@dataclass(frozen=True)
class Share:
    """The part of one type, person or artifact."""

    what: str
    artifacts: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Usage:
    """The facts of one report, the largest first."""

    total: Share
    by_type: tuple[Share, ...]
    by_user: tuple[Share, ...]
    largest: tuple[Share, ...]


def usage(root: Path, *, public: bool = False) -> Usage:
    """The report over a root; `public` leaves out who built what."""
    found = [entry.record for entry in history.entries(root) if entry.record is not None]
    return Usage(
        total=_share("all", found),
        by_type=_by(lambda record: record.result_type, found),
        by_user=() if public else _by(lambda record: record.provenance.user, found),
        largest=() if public else _by(lambda record: record.address, found)[:LARGEST],
    )


def lines(report: Usage) -> list[str]:
    """The report as a person reads it."""
    text = [_line(report.total)]
    for title, shares in (("by type", report.by_type), ("by user", report.by_user)):
        text += [title, *(f"  {_line(share)}" for share in shares)] if shares else []
    return [
        *text,
        *(["largest"] if report.largest else []),
        *(f"  {_line(share)}" for share in report.largest),
    ]


def _by(key: Callable[[Record], str], records: Iterable[Record]) -> tuple[Share, ...]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return tuple(
        sorted((_share(what, group) for what, group in groups.items()), key=lambda s: (-s.bytes, s.what))
    )


def _share(what: str, records: list[Record]) -> Share:
    seconds = sum(record.finished - record.started for record in records)
    return Share(what, len(records), sum(record.files.bytes for record in records), seconds)


def _line(share: Share) -> str:
    count = f"{share.artifacts} artifacts" if share.artifacts != 1 else "1 artifact"
    return f"{share.what}: {format_bytes(share.bytes)}, {count}, built in {format_seconds(share.seconds)}"
