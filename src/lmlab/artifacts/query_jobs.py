"""Queries as jobs: a bounded queue before few workers, results kept as files, and a log of what was asked.

The id of a query is a hash of its SQL and of the root's state, so that the same question is answered from the
first answer's file: while it runs, afterwards, and after a restart. What changes without the catalog (the log itself, transfers, files of running artifacts) is never answered so.
"""

import collections
import contextlib
import hashlib
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from lmlab.artifacts import query_engine
from lmlab.artifacts.catalog import Catalog, Snapshot
from lmlab.artifacts.query_engine import Answer, Limits, Query
from lmlab.core import environ
from lmlab.core.errors import HostError, LmlabError, StorageError
from lmlab.storage import Path, budget
from lmlab.storage.scratch import scratch

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_DAYS = 7
CONCURRENT, WAITING = 8, 64
STATES, FILES = 1024, 256
LOG_LINES = 10_000


@dataclass(frozen=True)
class Job:
    """One query and how far it is."""

    id: str
    sql: str
    state: str = "running"
    """running, done or failed"""
    answer: Answer | None = None
    plan: str | None = None
    """Of a query that was to be explained only."""
    error: str | None = None
    cached: bool = False
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


@dataclass(frozen=True)
class Request:
    """What was asked."""

    sql: str
    use_cache: bool = True
    explain: bool = False
    timeout_s: float = 30.0
    user: str = ""


class Queries:
    """All queries of one root."""

    def __init__(self, catalog: Catalog, concurrent: int = CONCURRENT) -> None:
        self.catalog = catalog
        self.folder = scratch(KEPT_DAYS, catalog.root, "queries")
        self._memory_bytes = query_engine.memory_bytes(0.8 / concurrent)
        self._pool = ThreadPoolExecutor(concurrent, thread_name_prefix="query")
        self._lock = threading.Lock()
        self._jobs: collections.OrderedDict[str, Job] = collections.OrderedDict()
        self._files: collections.OrderedDict[str, None] | None = None
        self._open = 0
        self._log = QueryLog(catalog.root)
        self._tables: tuple[str, dict[str, pa.Table]] = ("", {})

    def submit(self, request: Request) -> Job:
        """Check a query and start it, or find it. Raises ConfigError (refused), HostError (too many wait)."""
        snapshot = self.catalog.snapshot
        query = query_engine.check(request.sql, snapshot, self.catalog.root)
        key = _key(query, snapshot) if self._is_lasting(query, snapshot) and not request.explain else None
        if key is not None and request.use_cache:
            job = self.get(key)
            if job is not None and job.state != "failed":
                job = replace(job, cached=job.state == "done")
                self._keep(job)
                if job.answer is not None:
                    self._log.add(request, 0.0, job.answer.row_count, cached=True)
                return job
        job = Job(key if key and request.use_cache else secrets.token_hex(16), request.sql)
        with self._lock:
            if self._open >= CONCURRENT + WAITING:
                raise HostError(f"{self._open} queries run or wait, and no more are taken. Try again later.")
            self._open += 1
        self._keep(job)
        self._pool.submit(self._work, job, query, snapshot, request)
        return job

    def get(self, identifier: str) -> Job | None:
        """A query by its id, also one that an earlier process answered; None if there is none."""
        with self._lock:
            job = self._jobs.get(identifier)
            if job is not None:
                self._jobs.move_to_end(identifier)
        if job is not None or not identifier.isalnum():
            return job
        data = (self.folder / f"{identifier}.json").read_if_present()
        found = _decode(data) if data else None
        return found if found and time.time() - found.finished < KEPT_DAYS * 86_400 else None

    def file(self, job: Job) -> Path:
        """The rows of a query that is done, as Parquet."""
        return self.folder / f"{job.id}.parquet"

    def rows(self, job: Job, offset: int = 0, count: int = query_engine.PREVIEW_ROWS) -> list[list[Any]]:
        """A page of the result, as JSON values."""
        file, limits = self.file(job), Limits(memory_bytes=self._memory_bytes)
        with query_engine.local_copy(file) as place:
            source = f"FROM read_parquet({query_engine.text(str(place))}, hive_partitioning = false)"
            return query_engine.rows(source, limits, file=str(place), offset=offset, count=count)[1]

    def tables(self, snapshot: Snapshot, names: "frozenset[str] | None" = None) -> "dict[str, pa.Table]":
        """The tables of SQL by name. Those that grow by themselves are read anew when they are named."""
        if self._tables[0] != snapshot.generation:
            self._tables = snapshot.generation, snapshot.tables()
        found = dict(self._tables[1])
        if names is None or "queries" in names:
            found["queries"] = arrow_table(Logged, self._log.rows())
        if names is None or "transfers" in names:
            found["transfers"] = arrow_table(budget.Transfer, budget.rows(self.catalog.root))
        return found

    def log(self) -> list[Logged]:
        """The last queries, oldest first."""
        return self._log.rows()

    def close(self) -> None:
        """Start no more queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- inside -----------------------------------------------------------------------------------

    def _work(self, job: Job, query: Query, snapshot: Snapshot, request: Request) -> None:
        started = time.monotonic()
        limits = Limits(timeout_s=request.timeout_s, memory_bytes=self._memory_bytes)
        folders = query_engine.allowed_folders(snapshot, self.catalog.root)
        try:
            tables = self.tables(snapshot, query.names)
            if request.explain:
                done = replace(job, state="done", plan=query_engine.explain(query, tables, folders, limits))
            else:
                with self.file(job).writer() as draft:
                    answer = query_engine.run(query, tables, folders, draft, limits)
                done = replace(job, state="done", answer=answer)
        except Exception as error:  # noqa: BLE001 - the boundary of a job: the answer is its error
            told = str(error) if isinstance(error, LmlabError) else f"{type(error).__name__}: {error}"
            done = replace(job, state="failed", error=" ".join(told.split()))
        done = replace(done, finished=time.time())
        if done.answer is not None:
            self._commit(done)
        with self._lock:
            self._open -= 1
        self._log.add(
            request,
            time.monotonic() - started,
            done.answer.row_count if done.answer else 0,
            error=done.error or "",
        )
        self._keep(done)

    def _commit(self, job: Job) -> None:
        """Write what makes the file a cached answer, last, and let go of the answers not used for longest."""
        with contextlib.suppress(StorageError):
            (self.folder / f"{job.id}.json").write_bytes(msgspec.json.encode(job))
        with self._lock:
            if self._files is None:
                names = [path.name.partition(".")[0] for path in self.folder.list()]
                self._files = collections.OrderedDict.fromkeys(names)
            self._files[job.id] = None
            self._files.move_to_end(job.id)
            old = [self._files.popitem(last=False)[0] for _ in range(len(self._files) - FILES)]
        for identifier in old:
            (self.folder / f"{identifier}.json").remove()
            (self.folder / f"{identifier}.parquet").remove()

    def _keep(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.id] = job
            self._jobs.move_to_end(job.id)
            if self._files is not None and job.id in self._files:
                self._files.move_to_end(job.id)
            for identifier in [i for i, j in self._jobs.items() if j.state != "running"]:
                if len(self._jobs) <= STATES:
                    break
                del self._jobs[identifier]

    def _is_lasting(self, query: Query, snapshot: Snapshot) -> bool:
        """Whether the answer can change only with the catalog: its files are those of built artifacts."""
        built = [
            f"{self.catalog.root / row.name / row.version}/" for row in snapshot.rows.values() if row.mark
        ]
        return query.names.isdisjoint({"queries", "transfers"}) and all(
            any(path.startswith(folder) for folder in built) for path in query.paths
        )


class QueryLog:
    """What was asked, as lines of JSON in the root's local state: the last LOG_LINES, at most twice that."""

    def __init__(self, root: Path) -> None:
        state = root.local / ".state" if root.is_local else environ.state_dir()
        self._file = state / "queries.jsonl"
        self._lock = threading.Lock()
        self._rows: collections.deque[Logged] = collections.deque(maxlen=LOG_LINES)
        self._lines = 0
        with contextlib.suppress(FileNotFoundError):
            for line in self._file.read_bytes().splitlines():
                self._lines += 1
                with contextlib.suppress(msgspec.DecodeError):
                    self._rows.append(msgspec.json.decode(line, type=Logged))

    def add(
        self, request: Request, seconds: float, rows: int, *, cached: bool = False, error: str = ""
    ) -> None:
        """One more."""
        entry = Logged(time.time(), request.user, request.sql, seconds, rows, cached, error)
        with self._lock:
            self._rows.append(entry)
            self._lines += 1
            self._file.parent.mkdir(parents=True, exist_ok=True)
            whole = self._lines > 2 * LOG_LINES
            with self._file.open("wb" if whole else "ab") as file:
                for row in self._rows if whole else [entry]:
                    file.write(msgspec.json.encode(row) + b"\n")
            self._lines = len(self._rows) if whole else self._lines

    def rows(self) -> list[Logged]:
        """The oldest first."""
        with self._lock:
            return list(self._rows)


def arrow_table(kind: type[Any], rows: list[Any]) -> "pa.Table":
    """Instances of a plain dataclass or struct as a table."""
    import pyarrow as pa

    types = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_(), "str": pa.string()}
    fields = kind.__annotations__
    return pa.table(
        {
            name: pa.array([getattr(row, name) for row in rows], types[getattr(kind_, "__name__", kind_)])
            for name, kind_ in fields.items()
        }
    )


def _key(query: Query, snapshot: Snapshot) -> str:
    return hashlib.sha256(f"{snapshot.generation}\n{query.sql}".encode()).hexdigest()[:32]


def _decode(data: bytes) -> Job | None:
    try:
        return msgspec.json.decode(data, type=Job)
    except msgspec.DecodeError:
        return None
