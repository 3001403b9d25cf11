"""What a query may say: one SELECT, known table functions, plain-text paths below the root's artifacts.

Judged by the engine's own syntax tree, so that no spelling hides a path. A path that is computed is refused:
DuckDB itself would follow `..` inside an s3:// address.
"""

import json
import pathlib
import re
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmlab.artifacts.catalog import Snapshot
from lmlab.core.errors import ConfigError
from lmlab.storage import Path, regions

SQL_LENGTH = 100_000
_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_FILE = re.compile(r"[/:*?\\]|\.(parquet|csv|tsv|jsonl?|ndjson|txt|db)(\.\w+)?$")
_ALLOW = re.compile(r"\s*--\s*cross-region:\s*allow\b")
_READERS = (
    *("read_parquet", "parquet_scan", "parquet_schema", "parquet_metadata", "parquet_file_metadata", "glob"),
    *("read_csv", "read_csv_auto", "sniff_csv", "read_text", "read_blob"),
    *("read_json", "read_json_auto", "read_ndjson", "read_ndjson_auto"),
)
_PURE = ("range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row")


@dataclass(frozen=True)
class Query:
    """SQL that passed the checks."""

    sql: str
    """One SELECT; `{{name@version}}` is replaced by the artifact's folder below `base`."""
    base: str
    """The root, or a folder of this machine that stands for a root which DuckDB can't read."""
    folders: tuple[str, ...]
    """What it may read: the top folders of artifacts, not dot-folders or scratch."""
    paths: tuple[str, ...]
    """Every file or glob it reads."""
    names: frozenset[str]
    """Lower-case names of the tables it reads."""


def check(sql: str, snapshot: Snapshot, root: Path, *, in_place: bool) -> Query:
    """The query, ready to run. Raises ConfigError with one line that says what is refused and why.

    `in_place` says that DuckDB reads the root itself; else its files are copied when the query runs.
    """
    if len(sql) > SQL_LENGTH:
        raise ConfigError(f"The query has {len(sql)} characters; {SQL_LENGTH} are the most. Shorten it.")
    copies = pathlib.Path(tempfile.gettempdir(), f"lmlab-{secrets.token_hex(8)}")
    base = str(root if in_place else copies)
    filled = _PLACE.sub(lambda found: f"{base}/{_place(found.group(1), snapshot)}", sql)
    folders = tuple(sorted({f"{base}/{row.name.partition('/')[0]}" for row in snapshot.rows.values()}))
    paths: list[str] = []
    names: set[str] = set()
    for node in _nodes(_parse(filled)):
        if node.get("type") == "TABLE_FUNCTION":
            paths += _arguments(node["function"])
        elif node.get("type") == "BASE_TABLE":
            # DuckDB joins the parts of a name with dots before it looks for a file called so.
            name = ".".join(filter(None, (node[f"{part}_name"] for part in ("catalog", "schema", "table"))))
            names.add(name.lower())
            paths += [name] if _FILE.search(name) else []
    for path in paths:
        _check_path(path, folders)
        if not _ALLOW.match(sql):
            _check_region(path.replace(base, str(root), 1))
    return Query(filled, base, folders, tuple(paths), frozenset(names))


def _place(address: str, snapshot: Snapshot) -> str:
    row = snapshot.row(address)
    if row.source is not None:
        raise ConfigError(
            f"{row.address} is adopted data at {row.source}, outside the root that queries read."
        )
    return f"{row.name}/{row.version}"


def _parse(sql: str) -> Any:
    """The syntax tree. Only SELECTs have one."""
    import duckdb

    with duckdb.connect() as parser:
        found = parser.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchone()
    tree = json.loads(found[0]) if found else {}
    if tree.get("error") and tree["error_type"] != "not implemented":
        raise ConfigError(f"The SQL can't be parsed: {tree['error_message']}. Correct it.")
    kinds = [] if tree.get("error") else [statement.type for statement in duckdb.extract_statements(sql)]
    if kinds != [duckdb.StatementType.SELECT]:
        raise ConfigError(f"{' '.join(sql.split())[:60]!r} is not exactly one SELECT, and queries only read.")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _arguments(function: dict[str, Any]) -> Iterator[str]:
    """The paths that a table function reads."""
    name = function["function_name"].lower()
    if name not in _READERS + _PURE:
        raise ConfigError(f"Queries may not call {name}() as a table, only {', '.join(_READERS + _PURE)}.")
    for argument in function["children"] if name in _READERS else ():
        if argument["alias"] or argument["type"] == "COMPARE_EQUAL":
            continue  # an option by name
        for item in argument["children"] if argument.get("function_name") == "list_value" else [argument]:
            value = item["value"].get("value") if item["type"] == "VALUE_CONSTANT" else None
            if not isinstance(value, str):
                raise ConfigError(
                    f"{name}() must be given its path as plain text, so that it can be checked."
                )
            yield value


def _check_path(path: str, folders: tuple[str, ...]) -> None:
    if ".." in path or "\\" in path:
        raise ConfigError(f"{path!r} contains '..', which could lead out of what queries may read.")
    folder = next((folder for folder in folders if path.startswith(f"{folder}/")), None)
    if folder is None:
        raise ConfigError(
            f"{path!r} is outside what queries may read. Name files as '{{{{name@version}}}}/*.parquet'."
        )
    if "/." in path.removeprefix(folder) or ("://" in path and "?" in path):
        raise ConfigError(f"{path!r} is one of lmlab's own files, or says how a store is reached. Name data.")


def _check_region(path: str) -> None:
    """Refuse a read from another region, and from one that is not known (V4)."""
    own, there = regions.own_region(), regions.region_of(path)
    if not regions.same_region(own, there):
        raise ConfigError(
            f"{path!r} lies in {there or 'an unknown region'}, and reading it from {own or 'another'} costs "
            "a transfer. Begin the query with `-- cross-region: allow` to pay for it."
        )
