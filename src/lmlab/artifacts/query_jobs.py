"""Queries as jobs: a bounded queue before few workers, results kept as files, and a log of what was asked.

The id of a query is a hash of its SQL and of the root's state: the same question finds the same file while it
runs, afterwards, and after a restart. What changes without the catalog (the log, transfers, files being
written) is never answered so.
"""

import contextlib
import hashlib
import secrets
import threading
import time
import typing
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from lmlab.artifacts import query_engine as engine
from lmlab.artifacts.catalog import FOLDER, Catalog, Row, Snapshot
from lmlab.artifacts.query_rules import Query, check
from lmlab.core import environ
from lmlab.core.errors import ConfigError, HostError, LmlabError, StorageError
from lmlab.storage import Path, budget
from lmlab.storage.scratch import DAY_S, scratch

CONCURRENT, WAITING = 8, 64
STATES, FILES, KEPT_DAYS = 1024, 256, 7
SHOWN_ROWS, LONGEST_S = 10_000, 600.0
KEPT_S = KEPT_DAYS * DAY_S - 60
LOG_BYTES = 4 << 20
TABLES = ("artifacts", "edges", "transfers", "queries")


@dataclass(frozen=True)
class Ask:
    """What was asked."""

    sql: str
    use_cache: bool = True
    explain: bool = False
    """Show how it would be run instead."""
    timeout_s: float = 30.0
    user: str = ""


@dataclass(frozen=True)
class Job:
    """One query and how far it is."""

    id: str
    sql: str
    state: str = "running"
    """running, done or failed"""
    columns: engine.Columns = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    """Of an explanation; those of a query are in its file."""
    row_count: int | None = None
    seconds: float | None = None
    cached: bool = False
    error: str | None = None
    finished: float = 0.0


@dataclass(frozen=True)
class Logged:
    """A row of the table `queries`."""

    time: float
    user: str
    sql: str
    seconds: float
    rows: int
    cached: bool
    error: str


class Queries:
    """All queries of one root."""

    def __init__(self, catalog: Catalog, concurrent: int = CONCURRENT, waiting: int = WAITING) -> None:
        self.catalog = catalog
        self.log = Log(catalog.root)
        self._folder = scratch(KEPT_DAYS, catalog.root, "queries")
        self._limits = {"timeout_s": 60.0, "share": 0.8 / concurrent}
        self._in_place = engine.reads(catalog.root)
        self._pool = ThreadPoolExecutor(concurrent, thread_name_prefix="query")
        self._most = concurrent + waiting
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._files: OrderedDict[str, None] = OrderedDict()
        self._tables: tuple[str, dict[str, Any]] = ("", {})

    def submit(self, ask: Ask) -> Job:
        """Check a query and start it, or find it. Raises ConfigError (refused), HostError (too many wait)."""
        if not 0 < ask.timeout_s <= LONGEST_S:
            raise ConfigError(f"timeout_s={ask.timeout_s} is not between 0 and {LONGEST_S:g}. Change it.")
        snapshot = self.catalog.snapshot
        query = check(ask.sql, snapshot, self.catalog.root, in_place=self._in_place)
        identifier = secrets.token_hex(16)
        if ask.use_cache and not ask.explain and self._is_lasting(query, snapshot):
            identifier = hashlib.sha256(f"{snapshot.generation}\n{ask.sql.strip()}".encode()).hexdigest()[:32]
            found = self.get(identifier)
            if found is not None and found.state == "done" and self.file(found).exists():
                found = replace(found, cached=True)
                self._keep(found)
                self.log.add(ask, found)
                return found
        job = Job(identifier, ask.sql)
        with self._lock:
            running = {other.id: other for other in self._jobs.values() if other.state == "running"}
            if identifier in running:
                return running[identifier]
            if len(running) >= self._most:
                raise HostError(f"{len(running)} queries run or wait, so this one was not taken. Try later.")
            self._jobs[identifier] = job
        self._pool.submit(self._work, job, ask, query, snapshot)
        return job

    def get(self, identifier: str) -> Job | None:
        """A query by its id, also one that an earlier process answered; None if there is none."""
        job = self._jobs.get(identifier)
        if job is None and identifier.isalnum():
            with contextlib.suppress(msgspec.DecodeError):
                data = (self._folder / f"{identifier}.json").read_if_present() or b""
                job = msgspec.json.decode(data, type=Job)
        # Files expire by their own age, the rows a moment before what tells of them.
        is_kept = job is not None and (not job.finished or time.time() - job.finished < KEPT_S)
        return job if is_kept else None

    def file(self, job: Job, form: str = "parquet") -> Path:
        """The rows of a query that is done, as parquet or csv. Raises ConfigError if it has none."""
        if job.state != "done" or job.rows:
            raise ConfigError(f"Query {job.id} has no file: it is {job.state}.")
        path = self._folder / f"{job.id}.{form}"
        if form == "csv" and not path.exists():
            with engine.at_hand([self.file(job)]) as files, path.writer() as draft:
                engine.to_csv(files, draft, **self._limits)
        return path

    def page(self, job: Job, offset: int, count: int) -> list[list[Any]]:
        """Rows of a result as JSON values."""
        if job.rows or not job.row_count or not count:
            return job.rows
        with engine.at_hand([self.file(job)]) as files:
            count = min(count, SHOWN_ROWS)
            return engine.rows(engine.table(files), files, offset, count, **self._limits)[1]

    def tables(self, snapshot: Snapshot, names: Collection[str] = TABLES) -> dict[str, Any]:
        """The tables of SQL that are named, as Arrow."""
        import pyarrow.parquet as pq

        if self._tables[0] != snapshot.generation:
            sources = snapshot.sources.items()
            edges = [Edge(a, target, kind) for target, used in sources for a, kind in used.items()]
            artifacts = arrow(Row, snapshot.rows.values()).drop_columns("mark")
            found = {"artifacts": artifacts, "edges": arrow(Edge, edges)}
            self._tables = snapshot.generation, found
            for name, table in found.items():
                place = self.catalog.root / FOLDER / f"{name}.parquet"
                # For whoever opens the catalog without us.
                with contextlib.suppress(StorageError), place.writer() as draft:
                    pq.write_table(table, draft)
        tables = dict(self._tables[1])
        if "queries" in names:
            tables["queries"] = arrow(Logged, self.log.rows())
        if "transfers" in names:
            tables["transfers"] = arrow(budget.Transfer, budget.rows(self.catalog.root))
        return {name: tables[name] for name in names if name in tables}

    def close(self, *, wait: bool = False) -> None:
        """Take no more: wait for all, or drop those that have not begun."""
        self._pool.shutdown(wait=wait, cancel_futures=not wait)

    def _work(self, job: Job, ask: Ask, query: Query, snapshot: Snapshot) -> None:
        limits = self._limits | {"timeout_s": ask.timeout_s}
        started = time.monotonic()
        try:
            tables = self.tables(snapshot, query.names)
            if ask.explain:
                plan = engine.explain(query, tables, **limits).splitlines()
                columns, count = [{"name": "plan", "type": "VARCHAR"}], len(plan)
                job = replace(job, rows=[[line] for line in plan])
            else:
                with (self._folder / f"{job.id}.parquet").writer() as draft:
                    columns, count = engine.run(query, tables, self.catalog.root, draft, **limits)
            job = replace(job, state="done", columns=columns, row_count=count)
        except Exception as error:  # noqa: BLE001 - the boundary of a job: the answer is its error
            told = str(error) if isinstance(error, LmlabError) else f"{type(error).__name__}: {error}"
            job = replace(job, state="failed", error=" ".join(told.split()))
        job = replace(job, seconds=time.monotonic() - started, finished=time.time())
        if job.state == "done" and not ask.explain:
            self._commit(job)
        self.log.add(ask, job)
        self._keep(job)

    def _commit(self, job: Job) -> None:
        """Write what makes the file an answer, last; let go of those not used for longest."""
        with contextlib.suppress(StorageError):
            (self._folder / f"{job.id}.json").write_bytes(msgspec.json.encode(job))
        with self._lock:
            if not self._files:
                self._files.update((path.name.partition(".")[0], None) for path in self._folder.list())
            self._files[job.id] = None
            old = [self._files.popitem(last=False)[0] for _ in range(len(self._files) - FILES)]
            for identifier in old:
                self._jobs.pop(identifier, None)
        for name in (f"{identifier}.{form}" for identifier in old for form in ("json", "parquet", "csv")):
            (self._folder / name).remove()

    def _keep(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.id] = job
            self._jobs.move_to_end(job.id)
            if job.id in self._files:
                self._files.move_to_end(job.id)
            ended = [identifier for identifier, other in self._jobs.items() if other.state != "running"]
            for identifier in ended[: max(0, len(self._jobs) - STATES)]:
                del self._jobs[identifier]

    def _is_lasting(self, query: Query, snapshot: Snapshot) -> bool:
        """Whether the answer can change only with the catalog: its files are those of built artifacts."""
        built = tuple(f"{query.base}/{row.name}/{row.version}/" for row in snapshot.rows.values() if row.mark)
        return query.names.isdisjoint(("queries", "transfers")) and all(
            p.startswith(built) for p in query.paths
        )


class Edge(typing.NamedTuple):
    """A row of the table `edges`: `source` is used by `target`, as an input or only as an order (after)."""

    source: str
    target: str
    kind: str


class Log:
    """The last queries of this machine, as lines of JSON in the root's local state."""

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        folder = root.local / ".state" if root.is_local else environ.state_dir() / name
        self._file = folder / "queries.jsonl"
        self._lock = threading.Lock()

    def add(self, ask: Ask, job: Job) -> None:
        """One more. A log that can't be written takes no query down."""
        seconds = 0.0 if job.cached else job.seconds or 0.0
        row = Logged(time.time(), ask.user, ask.sql, seconds, job.row_count or 0, job.cached, job.error or "")
        with self._lock, contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if self._file.exists() and self._file.stat().st_size > LOG_BYTES:
                self._file.replace(self._file.with_suffix(".old"))
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")

    def rows(self) -> list[Logged]:
        """The oldest first."""
        found = []
        for file in (self._file.with_suffix(".old"), self._file):
            for line in file.read_bytes().splitlines() if file.exists() else ():
                with contextlib.suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(line, type=Logged))
        return found


def arrow(kind: type[Any], rows: Any) -> Any:
    """Rows of a flat class as an Arrow table; fields that are no numbers, truths or texts are left out."""
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns = {}
    for name, hint in typing.get_type_hints(kind).items():
        plain = next((known for known in types if hint in (known, known | None)), None)
        if plain is not None:
            columns[name] = pa.array([getattr(row, name) for row in rows], types[plain])
    return pa.table(columns)
