"""An index of everything below a root: states, lineage and SQL tables without reading each record again.

The index is a cache in `.catalog/` that may be deleted at any time. A refresh lists the folders of artifacts
and reads only what is new: a record whose file is as it was is not opened again, what is not built always is.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from lmlab.artifacts import history, records
from lmlab.artifacts.claims import Timing
from lmlab.artifacts.history import Entry
from lmlab.artifacts.identity import is_mutable, split_address, stored_name
from lmlab.artifacts.records import Record
from lmlab.core.errors import ArtifactError, ConfigError, StorageError
from lmlab.storage import Path

FOLDER = ".catalog"
INDEX = "index.msgpack"


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False, kw_only=True):
    """One artifact, as the SQL table `artifacts` shows it; what is unknown is None."""

    address: str
    """`name@version`"""
    name: str
    version: str
    state: str
    """built, adopted, running, failed, stopped, dead, removed or corrupt"""
    step: str | None = None
    result_type: str | None = None
    fingerprint: str | None = None
    started: float | None = None
    """Seconds since 1970."""
    finished: float | None = None
    seconds: float | None = None
    files: int | None = None
    bytes: int | None = None
    attempt: int = 0
    owner: str | None = None
    """Who holds the newest claim of what is not built."""
    error: str | None = None
    source: str | None = None
    """Where adopted data lies."""
    user: str | None = None
    host: str | None = None
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    argv: str | None = None
    config: str | None = None
    """JSON, as is `result`."""
    result: str | None = None
    inputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    mark: str = ""
    """The etag of the record; empty where there is none."""


@dataclass(frozen=True)
class Snapshot:
    """The rows of one moment. It never changes, so that a page and its parts agree."""

    rows: Mapping[str, Row]
    """By address."""

    @cached_property
    def generation(self) -> str:
        """Names this state of the root: equal as long as nothing was built, removed, begun or ended."""
        lines = [f"{row.address} {row.state} {row.mark} {row.attempt}\n" for row in self.rows.values()]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    @cached_property
    def sources(self) -> Mapping[str, dict[str, str]]:
        """By address: what it was made from ("input") or had to wait for ("after")."""
        return {
            address: {**dict.fromkeys(row.after, "after"), **dict.fromkeys(row.inputs, "input")}
            for address, row in self.rows.items()
        }

    @cached_property
    def users(self) -> Mapping[str, list[str]]:
        """By address: what was made of it, or had to wait for it."""
        users: dict[str, list[str]] = {}
        for address, sources in self.sources.items():
            for source in sources:
                users.setdefault(source, []).append(address)
        return users

    def row(self, address: str) -> Row:
        """The row of NAME@VERSION, or of a name's newest version. Raises ArtifactError if there is none."""
        name, found, version = address.partition("@")
        if found and is_mutable(version):
            address = f"{stored_name(name, version)}@{version}"
        if found and address in self.rows:
            return self.rows[address]
        versions = [] if found else [row for row in self.rows.values() if row.name == name]
        if not versions:
            raise ArtifactError(
                f"There is no artifact {address} in this root. `lmlab ls` shows what there is."
            )
        return max(versions, key=lambda row: (row.finished or 0.0, row.version))

    def up(self, address: str, depth: int | None = None) -> list[str]:
        """What it was made from or waited for, nearest first, at most `depth` steps away."""
        return _reach(address, self.sources, depth)

    def down(self, address: str, depth: int | None = None) -> list[str]:
        """What was made of it, nearest first."""
        return _reach(address, self.users, depth)

    def lineage(self, address: str, up: int | None = None, down: int | None = None) -> dict[str, Any]:
        """Nodes `up` and `down` steps from one (None: all), nearest first, and all edges between them."""
        near = dict.fromkeys([address, *self.up(address, up), *self.down(address, down)])
        edges = [
            {"source": source, "target": target, "kind": kind}
            for target in near
            for source, kind in self.sources.get(target, {}).items()
            if source in near
        ]
        return {"nodes": [self._node(one) for one in near], "edges": edges}

    def _node(self, address: str) -> dict[str, Any]:
        row = self.rows.get(address)
        shown = ("state", "step", "result_type", "finished")
        facts = {name: getattr(row, name, None) for name in shown}
        return {"address": address, **facts, "state": row.state if row else "missing", "missing": row is None}


class Catalog:
    """The index of one root. `refresh` may be called from any thread; readers use a snapshot."""

    def __init__(self, root: Path, stale_s: float = Timing().stale_s, whole_s: float = 600.0) -> None:
        self.root = root
        self._stale_s, self._whole_s = stale_s, whole_s
        self._next_whole_look = 0.0
        self.snapshot = Snapshot(_read_index(root))
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def refresh(self) -> Snapshot:
        """Look at the root and keep what is new: one look at the folder of each artifact."""
        with self._lock:
            known = self.snapshot.rows
            folders = history.folders(self.root, self._settled())
            looked = records.spread(self.root, lambda one: self._look(one[0], one[1], known), folders)
            found = [row for row in looked if row]
            rows = {row.address: row for row in found}
            if rows != known:
                self.snapshot = Snapshot(rows)
                data = msgspec.msgpack.encode((Row.__struct_fields__, found))
                # Who may only read a root can still look at it.
                with contextlib.suppress(StorageError):
                    (self.root / FOLDER / INDEX).write_bytes(data)
        return self.snapshot

    def _settled(self) -> dict[Path, str]:
        """In a bucket, where a look costs a request: built fixed versions, which only removal changes."""
        now = time.monotonic()
        if self.root.is_local or now > self._next_whole_look:
            self._next_whole_look = now + self._whole_s
            return {}
        fixed = [row for row in self.snapshot.rows.values() if row.mark and not is_mutable(row.version)]
        return {self.root / row.name / row.version: row.mark for row in fixed}

    def _look(self, folder: Path, mark: str, known: Mapping[str, Row]) -> Row | None:
        """The row of one folder: the known one if its record is the same file; None if nobody claimed it."""
        name, version = folder.parent.relative_to(self.root), folder.name
        row = known.get(address := f"{name}@{version}")
        if mark and row is not None and row.mark == mark:
            return row
        try:
            record = records.load(folder) if mark else None
        except ArtifactError as error:
            names = {"address": address, "name": name, "version": version}
            return Row(**names, state="corrupt", error=str(error), mark=mark)
        if record is not None:
            return _built(record, mark)
        with contextlib.suppress(ArtifactError):
            return self._unbuilt(history.entry(self.root, address))
        return None

    def _unbuilt(self, entry: Entry) -> Row:
        """A claim without a record. A beat that stands still by this process's clock is a death (T24)."""
        owner, state, error = entry.owner, entry.state, entry.error
        if state == "running" and entry.beat is not None:
            now, sign = time.monotonic(), (entry.attempt, entry.beat.counter)
            last, since = self._seen.setdefault(entry.address, (sign, now))
            if last != sign:
                self._seen[entry.address] = sign, now
            elif now - since > self._stale_s:
                state, error = "dead", f"no sign of life for {now - since:.0f} s"
        names = {name: getattr(entry, name) for name in ("address", "name", "version", "attempt")}
        row = Row(**names, state=state, error=error or None)
        if owner is None:
            return row
        return msgspec.structs.replace(
            row,
            step=owner.config.get("type"),
            started=owner.at,
            owner=owner.shown,
            host=owner.host,
            config=_json(owner.config),
            inputs=tuple(dict.fromkeys(_handles(owner.config))),
        )


def _reach(start: str, following: Mapping[str, Iterable[str]], depth: int | None) -> list[str]:
    """Breadth first, each address once: a cycle ends where it began."""
    seen, level = {start: None}, [start]
    while level and (depth is None or depth > 0):
        level = list(dict.fromkeys(b for a in level for b in following.get(a, ()) if b not in seen))
        seen.update(dict.fromkeys(level))
        depth = None if depth is None else depth - 1
    return list(seen)[1:]


def _built(record: Record, mark: str) -> Row:
    of_record = (
        *("address", "name", "version", "fingerprint", "result_type"),
        *("started", "finished", "attempt", "source", "after"),
    )
    of_origin = ("user", "host", "commit", "branch", "dirty")
    return Row(
        **{name: getattr(record, name) for name in of_record},
        **{name: getattr(record.provenance, name) for name in of_origin},
        state="built" if record.source is None else "adopted",
        step=record.step.strip("_"),
        seconds=record.finished - record.started,
        files=record.files.count,
        bytes=record.files.bytes,
        argv=" ".join(record.provenance.argv),
        config=_json(record.config),
        result=_json(record.result),
        inputs=tuple(made_from.address for made_from in record.inputs),
        mark=mark,
    )


def _handles(config: Any) -> Iterator[str]:
    """Artifacts in the recipe of a claim, where they stand as NAME@VERSION or NAME@VERSION/part."""
    if isinstance(config, dict | list):
        for value in [*config, *config.values()] if isinstance(config, dict) else config:
            yield from _handles(value)
    elif isinstance(config, str) and "@" in config:
        name, _, rest = config.partition("@")
        with contextlib.suppress(ConfigError):
            split_address(address := f"{name}@{rest.partition('/')[0]}")
            yield address


def _read_index(root: Path) -> dict[str, Row]:
    """Nothing if it is absent, damaged, or of rows with other fields: the records are what counts."""
    with contextlib.suppress(msgspec.DecodeError):
        data = (root / FOLDER / INDEX).read_if_present() or b""
        fields, rows = msgspec.msgpack.decode(data, type=tuple[tuple[str, ...], list[Row]])
        if fields == Row.__struct_fields__:
            return {row.address: row for row in rows}
    return {}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
