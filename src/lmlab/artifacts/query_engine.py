"""DuckDB for one query: in memory, locked to the places it was given, with a deadline and a share of memory.

Settings such as memory and threads belong to an instance, so that each query has an instance of its own.
"""

import contextlib
import math
import os
import pathlib
import re
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmlab.artifacts.query_rules import Query
from lmlab.core import environ
from lmlab.core.errors import ConfigError
from lmlab.storage import Path, budget, secrets
from lmlab.storage.lab import Backend, lab
from lmlab.storage.scratch import scratch

if TYPE_CHECKING:
    import duckdb

Columns = list[dict[str, str]]
"""{name, type} of each."""
_KEYS = {
    "KEY_ID": ("access_key", "AWS_ACCESS_KEY_ID"),
    "SECRET": ("secret_key", "AWS_SECRET_ACCESS_KEY"),
    "SESSION_TOKEN": ("session_token", "AWS_SESSION_TOKEN"),
}
"""By DuckDB's names: the field of lmlab.toml, and the variable where there is none."""
_WIDE = ("HUGEINT", "UHUGEINT")
_NUMBER = re.compile(r"BOOLEAN|FLOAT|DOUBLE|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")
CELL_CHARACTERS = 32_768


def run(
    query: Query, tables: Mapping[str, Any], root: Path, target: pathlib.Path, **limits: Any
) -> tuple[Columns, int]:
    """Write the rows of a checked query to `target` as Parquet; its columns, and how many rows.

    `tables` are Arrow tables by name. What is read from another region is charged first.
    """
    spill = str(scratch(1, root, "spill")) if root.is_local else None
    with _staged(query, root), _engine(query.folders, [str(target)], spill=spill, **limits) as engine:
        columns = _view(engine, query.sql, tables)
        # Parquet has no 128-bit integers, which is what sum() gives.
        stored = [
            f"c{i}{'::DECIMAL(38,0)' if column['type'] in _WIDE else ''} AS {_name(column['name'])}"
            for i, column in enumerate(columns)
        ]
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        copy = f"COPY (FROM answer SELECT {', '.join(stored)}) TO {text(str(target))} ({options})"
        counted = engine.execute(copy).fetchone()
    return columns, counted[0] if counted else 0


def explain(query: Query, tables: Mapping[str, Any], **limits: Any) -> str:
    """The plan of a checked query, which is not run."""
    with _engine(query.folders, [], **limits) as engine:
        _view(engine, query.sql, tables)
        return "\n".join(row[1] for row in engine.execute("EXPLAIN FROM answer").fetchall())


def rows(
    source: str, files: Sequence[str], offset: int, count: int, **limits: Any
) -> tuple[Columns, list[list[Any]]]:
    """Rows of `source` (SQL of ours over these files) as JSON values: NaN, times and nested ones as text."""
    with _engine((), files, **limits) as engine:
        columns = _view(engine, source, {})
        shown = ", ".join(_shown(f"c{i}", column["type"]) for i, column in enumerate(columns))
        found = engine.execute(f"FROM answer SELECT {shown} LIMIT {count} OFFSET {offset}").fetchall()
    return columns, [[_finite(value) for value in row] for row in found]


def to_csv(files: Sequence[str], target: pathlib.Path, **limits: Any) -> None:
    """Parquet as CSV with a header."""
    with _engine((), [*files, str(target)], **limits) as engine:
        engine.execute(f"COPY ({table(files)}) TO {text(str(target))} (FORMAT csv, USE_TMP_FILE false)")


def text(value: str) -> str:
    """As a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def table(files: Sequence[str]) -> str:
    """Parquet files as SQL; DuckDB would make a column of `ttl=7d` in their path (T20)."""
    return f"FROM read_parquet([{', '.join(map(text, files))}], hive_partitioning = false)"


def _memory_bytes(share: float) -> int:
    """A share of this machine's memory, or of what its container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.exists() else "max"
    return int(share * (total if given == "max" else min(total, int(given))))


def reads(place: Path) -> bool:
    """Whether DuckDB can read this store itself; else files are copied to it."""
    return place.is_local or (place.scheme == "s3" and _credentials(place.bucket) is not None)


@contextlib.contextmanager
def at_hand(files: Sequence[Path]) -> Generator[list[str]]:
    """Where DuckDB finds files of one store: themselves, or copies while the block runs."""
    if not files or reads(files[0]):
        for file in files if files and budget.applies(files[0]) else ():
            budget.charge(file, file.size())
        yield [str(file) for file in files]
        return
    with tempfile.TemporaryDirectory(prefix="lmlab-copy-") as folder:
        copies = [pathlib.Path(folder, f"{i}-{file.name}") for i, file in enumerate(files)]
        for file, copy in zip(files, copies, strict=True):
            with copy.open("wb") as opened:
                opened.writelines(file.chunks())
        yield [str(copy) for copy in copies]


@contextlib.contextmanager
def _staged(query: Query, root: Path) -> Generator[None]:
    """Charge for files of another region; copy files to `query.base` where DuckDB can't read the root."""
    in_place = query.base == str(root)
    try:
        for pattern in (path.removeprefix(f"{query.base}/") for path in query.paths):
            for file in root.glob(pattern) if not in_place or budget.applies(root) else ():
                if in_place:
                    budget.charge(file, file.size())
                else:
                    with Path(f"{query.base}/{file.relative_to(root)}").open_writer() as copy:
                        copy.writelines(file.chunks())
        yield
    finally:
        if not in_place:
            Path(query.base).remove_tree()


@contextlib.contextmanager
def _engine(
    folders: Sequence[str], files: Sequence[str], timeout_s: float, share: float, spill: str | None = None
) -> "Generator[duckdb.DuckDBPyConnection]":
    """An instance that reaches these folders and files alone; what exceeds its memory goes below `spill`."""
    import duckdb

    if spill:
        Path(spill).make_folder()

    finished = threading.Event()
    settings: dict[str, Any] = {
        "memory_limit": f"{max(_memory_bytes(share), 128 << 20)}B",
        "threads": environ.cpu_count(),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with (
        tempfile.TemporaryDirectory(prefix="lmlab-spill-", dir=spill) as temporary,
        duckdb.connect(config=settings) as engine,
    ):
        for bucket in {place.split("/")[2] for place in (*folders, *files) if place.startswith("s3://")}:
            _open_store(engine, bucket)
        inside = ", ".join(text(f"{folder}/") for folder in folders)
        engine.execute(f"SET temp_directory = {text(temporary)}; SET allowed_directories = [{inside}]")
        engine.execute(f"SET allowed_paths = [{', '.join(map(text, files))}]")
        engine.execute("SET enable_external_access = false; SET lock_configuration = true")
        watch = threading.Thread(target=_interrupt, args=(engine, finished, timeout_s), daemon=True)
        watch.start()
        try:
            yield engine
        except duckdb.InterruptException as error:
            raise ConfigError(f"Cancelled after {timeout_s:g} s. Read less, or give it more time.") from error
        except duckdb.Error as error:
            raise ConfigError(" ".join(str(error).partition("\n\nLINE")[0].split())) from error
        finally:
            finished.set()
            watch.join()


def _interrupt(engine: "duckdb.DuckDBPyConnection", finished: threading.Event, timeout_s: float) -> None:
    """Again and again: one call may fall between two statements."""
    finished.wait(timeout_s)
    while not finished.wait(0.05):
        engine.interrupt()


def _open_store(engine: "duckdb.DuckDBPyConnection", bucket: str) -> None:
    """The key of an S3 bucket, and the extension for it from its wheel: nothing is downloaded (T20)."""
    import duckdb
    import duckdb_extension_httpfs

    found = lab().backend("s3", bucket) or Backend()
    scheme, _, host = (found.endpoint or "").rpartition("://")
    given = {
        **(_credentials(bucket) or {}),
        "REGION": found.region or (None if found.is_pinned else environ.get("AWS_REGION")),
        "ENDPOINT": host,
        "USE_SSL": "false" if scheme == "http" else "",
        "URL_STYLE": "path" if host and found.addressing == "path" else "vhost",
        "SCOPE": f"s3://{bucket}",
    }
    options = "".join(f", {name} {text(value)}" for name, value in given.items() if value)
    wheel = pathlib.Path(duckdb_extension_httpfs.__file__).parent
    (extension,) = wheel.glob("extensions/*/httpfs.duckdb_extension")
    try:
        engine.execute(f"LOAD {text(str(extension))}; CREATE SECRET (TYPE s3{options})")
    except duckdb.Error:
        pass
    else:
        return
    # Raised outside of the handler and without DuckDB's text, which quotes the statement with the key.
    raise ConfigError(f"DuckDB can't use the settings of s3://{bucket}. Correct them in lmlab.toml.")


def _credentials(bucket: str) -> dict[str, str | None] | None:
    """The S3 key as DuckDB names it, {} for public data; None if only obstore can find one."""
    found = lab().backend("s3", bucket)
    if found and found.anonymous:
        return {}
    if found and found.is_pinned:
        references = {key: getattr(found, field) for key, (field, _) in _KEYS.items()}
        what = f"s3://{bucket}"
        return {key: secrets.resolve(refs, what).reveal() for key, refs in references.items() if refs}
    keys = {key: environ.get(variable) for key, (_, variable) in _KEYS.items()}
    return keys if keys["KEY_ID"] else None


def _view(engine: "duckdb.DuckDBPyConnection", sql: str, tables: Mapping[str, Any]) -> Columns:
    """Make the query the view `answer`, with columns c0, c1 …; returns their names and types."""
    for name, found in tables.items():
        engine.register(name, found)
    relation = engine.sql(sql)
    relation.create_view("asked")
    names = ", ".join(f"c{i}" for i in range(len(relation.columns)))
    engine.execute(f"CREATE VIEW answer AS FROM asked AS t({names})")
    pairs = zip(_unique(relation.columns), relation.types, strict=True)
    return [{"name": name, "type": str(kind)} for name, kind in pairs]


def _unique(names: Sequence[str]) -> list[str]:
    """Repeated names get a number."""
    found: dict[str, str] = {}
    for name in names:
        spellings = (name, *(f"{name}_{i}" for i in range(2, len(names) + 2)))
        chosen = next(one for one in spellings if one.lower() not in found)
        found[chosen.lower()] = chosen
    return list(found.values())


def _shown(name: str, kind: str) -> str:
    """What has no place in JSON as text, and of text the beginning: a cell may hold gigabytes."""
    if _NUMBER.fullmatch(kind):
        return name
    if kind.startswith("DECIMAL"):
        return f"{name}::{'HUGEINT' if kind.endswith(',0)') else 'DOUBLE'}"
    is_nested = kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))
    return f"left({f'to_json({name})' if is_nested else name}::VARCHAR, {CELL_CHARACTERS})"


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
