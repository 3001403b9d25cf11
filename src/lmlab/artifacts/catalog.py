"""An index of everything below a root: states, lineage and SQL tables without reading each record again.

The index is a cache in `.catalog/` that may be deleted at any time. A refresh lists the folders of artifacts
and reads only what is new: a record whose file is as it was is not opened again, what is not built always is.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from lmlab.artifacts import claims, history, records
from lmlab.artifacts.claims import Timing
from lmlab.artifacts.history import Entry
from lmlab.artifacts.identity import split_address
from lmlab.artifacts.records import Record
from lmlab.core.errors import ArtifactError, ConfigError, StorageError
from lmlab.storage import Path

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".catalog"
INDEX = "index.msgpack"
FORMAT = 1
_THREADS = 32
"""Requests at the same time to an object store."""


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False, kw_only=True):
    """One artifact, as the SQL table `artifacts` shows it; what is unknown is None."""

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
    """Tells this record file from another one; empty where there is no record."""

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Node:
    """One artifact of a lineage."""

    address: str
    state: str
    """As in Row, or missing."""
    step: str | None
    result_type: str | None
    finished: float | None
    missing: bool
    """Whether others name it and it is not there."""


@dataclass(frozen=True)
class Edge:
    """`source` is used by `target`."""

    source: str
    target: str
    kind: str
    """input, or after: order only."""


@dataclass(frozen=True)
class Lineage:
    """A neighbourhood: nodes from the nearest to the farthest, and the edges between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


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
    def users(self) -> Mapping[str, list[str]]:
        """By address: what was made of it, or had to wait for it."""
        users: dict[str, list[str]] = {}
        for address, row in self.rows.items():
            for source in dict.fromkeys((*row.inputs, *row.after)):
                users.setdefault(source, []).append(address)
        return users

    def row(self, address: str) -> Row:
        """The row of NAME@VERSION, or of a name's newest version. Raises ArtifactError if there is none."""
        name, found, _ = address.partition("@")
        if found and address in self.rows:
            return self.rows[address]
        versions = [] if found else [row for row in self.rows.values() if row.name == name]
        if not versions:
            raise ArtifactError(
                f"There is no artifact {address} in this root. `lmlab ls` shows what there is."
            )
        return max(versions, key=lambda row: (row.finished or 0.0, row.version))

    def needs(self, address: str) -> list[str]:
        """What an artifact was made from, and what it waited for."""
        row = self.rows.get(address)
        return [] if row is None else list(dict.fromkeys((*row.inputs, *row.after)))

    def up(self, address: str, depth: int | None = None) -> list[str]:
        """What it was made from, nearest first, at most `depth` steps away."""
        return _reach(address, self.needs, depth)

    def down(self, address: str, depth: int | None = None) -> list[str]:
        """What was made of it, nearest first."""
        return _reach(address, lambda source: self.users.get(source, []), depth)

    def lineage(self, address: str, up: int | None = None, down: int | None = None) -> Lineage:
        """The artifacts around one, `up` and `down` steps away (None: all), and every edge between them."""
        near = dict.fromkeys([address, *self.up(address, up), *self.down(address, down)])
        edges = [edge for target in near for edge in self._edges(target) if edge.source in near]
        return Lineage(tuple(map(self._node, near)), tuple(edges))

    def tables(self) -> "dict[str, pa.Table]":
        """`artifacts` and `edges` for SQL."""
        import pyarrow as pa

        types = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
        columns: dict[str, Any] = {"address": pa.array(self.rows, pa.string())}
        for field in msgspec.structs.fields(Row):
            if field.name not in ("inputs", "after", "mark"):
                kind = str(field.type).split(" ")[0] if "|" in str(field.type) else field.type.__name__
                values = [getattr(row, field.name) for row in self.rows.values()]
                columns[field.name] = pa.array(values, types.get(kind, pa.string()))
        edges = [edge for address in self.rows for edge in self._edges(address)]
        names = ("source", "target", "kind")
        of_edges = {name: pa.array([getattr(edge, name) for edge in edges], pa.string()) for name in names}
        return {"artifacts": pa.table(columns), "edges": pa.table(of_edges)}

    def _edges(self, target: str) -> Iterator[Edge]:
        row = self.rows.get(target)
        if row is not None:
            yield from (Edge(source, target, "input") for source in dict.fromkeys(row.inputs))
            yield from (Edge(source, target, "after") for source in dict.fromkeys(row.after))

    def _node(self, address: str) -> Node:
        row = self.rows.get(address)
        if row is None:
            return Node(address, "missing", None, None, None, missing=True)
        return Node(address, row.state, row.step, row.result_type, row.finished, missing=False)


class Catalog:
    """The index of one root. `refresh` may be called from any thread; readers use a snapshot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.snapshot = Snapshot(_read_index(root))
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def refresh(self) -> Snapshot:
        """Look at the root and keep what is new: one look at the folder of each artifact."""
        with self._lock, ThreadPoolExecutor(_THREADS) as pool:
            known = self.snapshot.rows
            # Threads cost more than they bring where a look takes microseconds.
            spread: Callable[..., Iterable[Any]] = map if self.root.is_local else pool.map
            folders = sorted(_folders(self.root, known, spread))
            found = [row for row in spread(lambda folder: self._look(folder, known), folders) if row]
            rows = {row.address: row for row in found}
            if rows != known:
                self.snapshot = Snapshot(rows)
                _write_index(self.root, found)
        return self.snapshot

    def _look(self, folder: Path, known: Mapping[str, Row]) -> Row | None:
        """The row of one folder: the known one if its record is the same file."""
        name, version = folder.parent.relative_to(self.root), folder.name
        address = f"{name}@{version}"
        row = known.get(address)
        mark = _mark(folder / records.RECORD)
        if mark and row is not None and row.mark == mark:
            return row
        try:
            record = records.load(folder) if mark else None
        except ArtifactError as error:
            return Row(name=name, version=version, state="corrupt", error=str(error), mark=mark)
        if record is not None:
            return _built(record, mark)
        try:
            return self._unbuilt(history.entry(self.root, address))
        except ArtifactError:
            # Nobody has claimed it: an empty folder.
            return None

    def _unbuilt(self, entry: Entry) -> Row:
        """A claim without a record. A beat that stands still by this process's clock is a death (T24)."""
        owner, beat = entry.owner, entry.beat
        state, error = entry.state, entry.error
        if state == "running" and beat is not None:
            now, sign = time.monotonic(), (entry.attempt, beat.counter)
            last, since = self._seen.setdefault(entry.address, (sign, now))
            if last != sign:
                self._seen[entry.address] = sign, now
            elif now - since > Timing().stale_s:
                state, error = "dead", f"no sign of life for {now - since:.0f} s"
        config = owner.config if owner else None
        return Row(
            name=entry.name,
            version=entry.version,
            state=state,
            step=config.get("type") if config else None,
            started=owner.at if owner else None,
            attempt=entry.attempt,
            owner=owner.shown if owner else None,
            error=error or None,
            host=owner.host if owner else None,
            config=_json(config) if config else None,
            inputs=tuple(dict.fromkeys(_addresses(config))),
        )


def _reach(start: str, following: Callable[[str], list[str]], depth: int | None) -> list[str]:
    """Breadth first, each address once: a cycle ends where it began."""
    seen, level = {start: None}, [start]
    while level and (depth is None or depth > 0):
        level = list(dict.fromkeys(b for a in level for b in following(a) if b not in seen))
        seen.update(dict.fromkeys(level))
        depth = None if depth is None else depth - 1
    return list(seen)[1:]


def _built(record: Record, mark: str) -> Row:
    origin = record.provenance
    return Row(
        name=record.name,
        version=record.version,
        state="built" if record.source is None else "adopted",
        step=record.step.strip("_"),
        result_type=record.result_type,
        fingerprint=record.fingerprint,
        started=record.started,
        finished=record.finished,
        seconds=record.finished - record.started,
        files=record.files.count,
        bytes=record.files.bytes,
        attempt=record.attempt,
        source=record.source,
        user=origin.user,
        host=origin.host,
        commit=origin.commit,
        branch=origin.branch,
        dirty=origin.dirty,
        argv=" ".join(origin.argv),
        config=_json(record.config),
        result=_json(record.result),
        inputs=tuple(made_from.address for made_from in record.inputs),
        after=record.after,
        mark=mark,
    )


def _addresses(config: Any) -> Iterator[str]:
    """Handles in the recipe of a claim: they stand there as NAME@VERSION, or NAME@VERSION/part."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from _addresses([key, value])
    elif isinstance(config, list):
        for value in config:
            yield from _addresses(value)
    elif isinstance(config, str) and "@" in config:
        name, _, rest = config.partition("@")
        with contextlib.suppress(ArtifactError, ConfigError):
            yield "@".join(map(str, split_address(f"{name}@{rest.partition('/')[0]}")))


def _folders(root: Path, known: Mapping[str, Row], spread: Callable[..., Iterable[Any]]) -> Iterator[Path]:
    """Folders that hold a record or claims, level by level, without a look into their data (T22)."""
    at = {str(root / row.name / row.version) for row in known.values() if row.mark}
    level = [root]
    while level:
        below: list[Path] = []
        for folder, children in zip(level, spread(Path.list, level), strict=True):
            names = {child.name for child in children}
            if records.RECORD in names or claims.FOLDER in names:
                yield folder
                continue
            inner = [c for c in children if not c.name.startswith(".") and (folder, c.name) != (root, "tmp")]
            yield from (child for child in inner if str(child) in at)
            below += [c for c in inner if str(c) not in at and (not root.is_local or c.is_dir())]
        level = below


def _mark(path: Path) -> str:
    try:
        found = path.local.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"


def _read_index(root: Path) -> dict[str, Row]:
    data = (root / FOLDER / INDEX).read_if_present()
    try:
        version, rows = msgspec.msgpack.decode(data or b"", type=tuple[int, list[Row]])
    except msgspec.DecodeError:
        # Absent, damaged or of another version: the records are what counts.
        return {}
    return {row.address: row for row in rows} if version == FORMAT else {}


def _write_index(root: Path, rows: list[Row]) -> None:
    # Who may only read a root can still look at it.
    with contextlib.suppress(StorageError):
        (root / FOLDER / INDEX).write_bytes(msgspec.msgpack.encode((FORMAT, rows)))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
