"""One SQL query over a root: checked, in a locked in-memory DuckDB of its own, cancelled at its deadline.

Two guards: our reading of the engine's own syntax tree (one SELECT, known table functions, paths in plain text
below the root's folders), and DuckDB's locked configuration. A path that is computed is refused.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmlab.artifacts.catalog import Snapshot
from lmlab.core import environ
from lmlab.core.errors import ConfigError
from lmlab.storage import Path

if TYPE_CHECKING:
    import duckdb

PREVIEW_ROWS = 10_000
SQL_LENGTH = 100_000
_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_ALLOW = re.compile(r"\s*--\s*cross-region:\s*allow\b")
# fmt: off
_READERS = (
    "read_parquet", "parquet_scan", "parquet_schema", "parquet_metadata", "parquet_file_metadata",
    "read_csv", "read_csv_auto", "sniff_csv", "read_json", "read_json_auto", "read_ndjson", "read_text", "read_blob", "glob",
)
_PURE = ("range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row")
# fmt: on
_PLAIN = (
    "BOOLEAN",
    "VARCHAR",
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
)


@dataclass(frozen=True)
class Limits:
    """What one query may use."""

    timeout_s: float = 30.0
    """It is cancelled after so long."""
    memory_bytes: int = field(default_factory=lambda: memory_bytes(0.8))
    """What it holds beyond that is spilled to disk."""
    threads: int = field(default_factory=environ.cpu_count)


@dataclass(frozen=True)
class Query:
    """SQL that passed the checks."""

    sql: str
    """One SELECT without a semicolon; `{{name@version}}` is replaced by the artifact's folder."""
    paths: tuple[str, ...]
    """Every file or glob it reads."""
    names: frozenset[str]
    """Lower-case names of the tables it reads."""


@dataclass(frozen=True)
class Column:
    """Of a result."""

    name: str
    type: str


@dataclass(frozen=True)
class Answer:
    """What a query gave. The rows are in the file that was asked for."""

    columns: tuple[Column, ...]
    row_count: int
    seconds: float


def memory_bytes(share: float) -> int:
    """A share of this machine's memory, or of what its container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.exists() else "max"
    return int(share * (total if given == "max" else min(total, int(given))))


# -- the checks ------------------------------------------------------------------------------------


def check(sql: str, snapshot: Snapshot, root: Path) -> Query:
    """The query, ready to run. Raises ConfigError with one line that says what is refused and why."""
    if len(sql) > SQL_LENGTH:
        raise ConfigError(f"The query has {len(sql)} characters; {SQL_LENGTH} are the most. Shorten it.")
    filled = _PLACE.sub(lambda found: _place(found.group(1), snapshot, root), sql)
    tree = _parse(filled)
    folders = allowed_folders(snapshot, root)
    paths: list[str] = []
    names: set[str] = set()
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            parts = [node.get(key) or "" for key in ("catalog_name", "schema_name", "table_name")]
            # DuckDB joins the parts with dots before it looks for a file of that name.
            name = ".".join(part for part in parts if part)
            names.add(name.lower())
            if re.search(r"[/:*?\\]", name):
                paths.append(name)
        elif node.get("type") == "TABLE_FUNCTION":
            paths += _arguments(node["function"])
    for path in paths:
        _check_path(path, folders)
    _check_regions(paths, allowed=_ALLOW.match(sql) is not None)
    return Query(_one_statement(filled), tuple(paths), frozenset(names))


def allowed_folders(snapshot: Snapshot, root: Path) -> list[str]:
    """What SQL may read: the top folders of artifacts below the root. Dot-folders and scratch are none."""
    tops = sorted({row.name.partition("/")[0] for row in snapshot.rows.values()})
    return [str(root / top) for top in tops]


def _place(text: str, snapshot: Snapshot, root: Path) -> str:
    row = snapshot.row(text)
    if row.source is not None:
        raise ConfigError(
            f"{row.address} is adopted data at {row.source}, outside what queries may read ({root}). "
            "Copy it into an artifact of its own to query it."
        )
    return str(root / row.name / row.version).replace("'", "''")


def _parse(sql: str) -> Any:
    import duckdb

    with duckdb.connect() as parser:
        text = parser.execute("select json_serialize_sql($1::varchar)", [sql]).fetchone()
    tree = json.loads(text[0]) if text else {}
    if tree.get("error_type") == "not implemented":
        raise ConfigError(
            f"{_words(sql)!r} is not a SELECT, and queries only read. Write SELECT, FROM or WITH."
        )
    if tree.get("error"):
        raise ConfigError(f"The SQL can't be parsed: {tree['error_message']}. Correct it.")
    count = len(tree["statements"])
    if count != 1:
        raise ConfigError(f"The text holds {count} statements; a query is exactly one SELECT. Send one.")
    return tree


def _one_statement(sql: str) -> str:
    """The statement alone, told from what follows it by the engine's own parser."""
    import duckdb

    statements = duckdb.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ConfigError(
            f"{_words(sql)!r} is not exactly one SELECT, and queries only read. Send one SELECT."
        )
    return statements[0].query


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _arguments(function: dict[str, Any]) -> list[str]:
    """The paths that a table function reads."""
    name = function["function_name"].lower()
    if name in _PURE:
        return []
    if name not in _READERS:
        raise ConfigError(
            f"Queries may not call {name}() as a table. They may call {', '.join(_READERS + _PURE)}."
        )
    paths: list[str] = []
    for argument in function["children"]:
        if argument["type"] == "COMPARE_EQUAL":
            continue
        items = argument["children"] if argument.get("function_name") == "list_value" else [argument]
        for item in items:
            value = item.get("value") if item["type"] == "VALUE_CONSTANT" else None
            if not isinstance(value, dict) or not isinstance(value.get("value"), str):
                raise ConfigError(
                    f"{name}() must be given its path as plain text, so that it can be checked."
                )
            paths.append(value["value"])
    return paths


def _check_path(path: str, folders: Sequence[str]) -> None:
    parts = path.split("/")
    if ".." in parts or "\\" in path:
        raise ConfigError(
            f"{path!r} contains '..', which could lead out of what queries may read. Write it plainly."
        )
    folder = next((folder for folder in folders if path.startswith(f"{folder}/")), None)
    if folder is None:
        raise ConfigError(
            f"{path!r} is outside what queries may read. Name files as '{{{{name@version}}}}/*.parquet'."
        )
    if "/." in path.removeprefix(folder):
        raise ConfigError(f"{path!r} is one of lmlab's own files, which queries don't read.")
    if "://" in path and "?" in path:
        raise ConfigError(f"{path!r} contains '?', which changes how a store is reached. Use * instead.")


def _check_regions(paths: Sequence[str], *, allowed: bool) -> None:
    """Refuse reads from another region unless the first line asks for them; fails closed (V4)."""
    from lmlab.storage import regions

    own = regions.own_region()
    for path in paths if not allowed else ():
        there = regions.region_of(path)
        if not regions.same_region(own, there):
            raise ConfigError(
                f"{path!r} lies in {there or 'an unknown region'} and this service in {own or 'another'}, "
                "so reading it costs a transfer. Begin the query with `-- cross-region: allow` to pay for it."
            )


def _words(sql: str) -> str:
    return " ".join(sql.split())[:60]


# -- the engine ------------------------------------------------------------------------------------


def run(
    query: Query, tables: Mapping[str, Any], folders: Sequence[str], target: pathlib.Path, limits: Limits
) -> Answer:
    """Run a checked query and write its rows to `target` as Parquet. `tables` are Arrow tables by name."""
    started = time.monotonic()
    with _engine(folders, [target], limits) as engine:
        for name, table in tables.items():
            if name in query.names:
                engine.register(name, table)
        columns = _columns(engine, query.sql)
        counted = engine.execute(_copy(query.sql, columns, target)).fetchone()
    return Answer(tuple(columns), int(counted[0]) if counted else 0, time.monotonic() - started)


def explain(query: Query, tables: Mapping[str, Any], folders: Sequence[str], limits: Limits) -> str:
    """The plan of a checked query, which is not run."""
    with _engine(folders, [], limits) as engine:
        for name, table in tables.items():
            engine.register(name, table)
        return "\n".join(row[1] for row in engine.execute(f"EXPLAIN {query.sql}").fetchall())


def rows(
    source: str, limits: Limits, *, file: str, offset: int = 0, count: int = PREVIEW_ROWS
) -> tuple[tuple[Column, ...], list[list[Any]]]:
    """Rows of `source` (SQL of ours over one `file`) as JSON values: NaN and inf as text."""
    with _engine([], [pathlib.Path(file)], limits) as engine:
        columns = _columns(engine, source)
        shown = ", ".join(_shown(f"c{i}", column.type) for i, column in enumerate(columns))
        aliases = ", ".join(f"c{i}" for i in range(len(columns)))
        page = f"SELECT {shown} FROM ({source}\n) AS t({aliases}) LIMIT {count} OFFSET {offset}"  # noqa: S608 - of ours
        found = engine.execute(page).fetchall()
    return tuple(columns), [[_finite(value) for value in row] for row in found]


@contextlib.contextmanager
def local_copy(file: Path) -> Generator[pathlib.Path]:
    """The file itself, or a copy on this machine while the block runs."""
    if file.is_local:
        yield file.local
        return
    with tempfile.TemporaryDirectory(prefix="lmlab-copy-") as folder:
        copy = pathlib.Path(folder) / file.name
        copy.write_bytes(file.read_bytes())
        yield copy


@contextlib.contextmanager
def _engine(
    folders: Sequence[str], files: Sequence[pathlib.Path], limits: Limits
) -> "Generator[duckdb.DuckDBPyConnection]":
    import duckdb

    finished = threading.Event()
    settings: dict[str, Any] = {
        "memory_limit": f"{max(limits.memory_bytes, 64 << 20)}B",
        "threads": limits.threads,
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with (
        tempfile.TemporaryDirectory(prefix="lmlab-spill-") as spill,
        duckdb.connect(config=settings) as engine,
    ):
        engine.execute(f"SET temp_directory = {text(spill)}")
        engine.execute(f"SET allowed_directories = [{', '.join(text(f'{folder}/') for folder in folders)}]")
        engine.execute(f"SET allowed_paths = [{', '.join(text(str(file)) for file in files)}]")
        engine.execute("SET enable_external_access = false")
        engine.execute("SET lock_configuration = true")
        watch = threading.Thread(target=_interrupt, args=(engine, finished, limits.timeout_s), daemon=True)
        watch.start()
        try:
            yield engine
        except duckdb.InterruptException as error:
            raise ConfigError(
                f"The query was cancelled after {limits.timeout_s:g} s. Read less, or give it more time."
            ) from error
        except duckdb.Error as error:
            raise ConfigError(_one_line(str(error))) from error
        finally:
            finished.set()
            watch.join()


def _interrupt(engine: "duckdb.DuckDBPyConnection", finished: threading.Event, timeout_s: float) -> None:
    """Again and again: one call may fall between two statements."""
    finished.wait(timeout_s)
    while not finished.wait(0.05):
        engine.interrupt()


def _columns(engine: "duckdb.DuckDBPyConnection", sql: str) -> list[Column]:
    described = engine.execute(f"DESCRIBE ({sql}\n)").fetchall()
    names = _unique([row[0] for row in described])
    return [Column(name, row[1]) for name, row in zip(names, described, strict=True)]


def _copy(sql: str, columns: Sequence[Column], target: pathlib.Path) -> str:
    aliases = ", ".join(f"c{i}" for i in range(len(columns)))
    # Parquet has no 128-bit integers, which is what sum() gives.
    wide = ("HUGEINT", "UHUGEINT")
    stored = ", ".join(
        f"{f'c{i}::DECIMAL(38,0)' if column.type in wide else f'c{i}'} AS {_name(column.name)}"
        for i, column in enumerate(columns)
    )
    options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
    return f"COPY (SELECT {stored} FROM ({sql}\n) AS t({aliases})) TO {text(str(target))} ({options})"  # noqa: S608 - checked


def _shown(name: str, kind: str) -> str:
    if kind in _PLAIN or kind in ("FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT"):
        return name
    if kind.startswith("DECIMAL"):
        return f"{name}::{'HUGEINT' if kind.endswith(',0)') else 'DOUBLE'}"
    is_nested = kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))
    return f"to_json({name})::VARCHAR" if is_nested else f"{name}::VARCHAR"


def _finite(value: Any) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _unique(names: Sequence[str]) -> list[str]:
    """Parquet tells columns apart by name, without regard to case: a repeated one gets a number."""
    found: dict[str, str] = {}
    for name in names:
        chosen, number = name, 1
        while chosen.lower() in found:
            number += 1
            chosen = f"{name}_{number}"
        found[chosen.lower()] = chosen
    return list(found.values())


def text(value: str) -> str:
    """As a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def _one_line(text: str) -> str:
    return " ".join(text.partition("\n\nLINE")[0].split())
