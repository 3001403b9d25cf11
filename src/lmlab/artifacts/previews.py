"""Looking into an artifact's files: folders with sizes, rows of tables, text, what an attempt printed.

A folder is listed from the artifact's own `.files.json`, so that a page costs one read and no listing.
"""

import gzip
import io
import pathlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from lmlab.artifacts import claims, query_engine, records
from lmlab.artifacts.catalog import Row
from lmlab.artifacts.query_engine import Limits
from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path, tree

JSON_BYTES = 100 << 20
TEXT_BYTES = 256 << 10
"""Shown of a text file at a time."""
KINDS = {
    "parquet": "table", "csv": "table", "tsv": "table", "jsonl": "table", "ndjson": "table", "json": "json",
    "txt": "text", "md": "text", "log": "text", "py": "text", "html": "text", "svg": "text", "toml": "text",
    "yaml": "text", "yml": "text", "jinja": "text", "css": "text", "js": "text",
}  # fmt: skip


def kind(name: str) -> str:
    """table, json, text or binary, by the file's name."""
    stem = name.removesuffix(".gz").removesuffix(".zst")
    return KINDS.get(stem.rpartition(".")[2].lower(), "binary")


def files(root: Path, row: Row, path: str) -> dict[str, Any]:
    """One folder of an artifact: its folders with what they hold in all, and its files."""
    prefix = f"{path.strip('/')}/" if path.strip("/") else ""
    folders: dict[str, dict[str, Any]] = {}
    found = []
    for name, size in sorted(sizes(root, row).items()):
        if not name.startswith(prefix):
            continue
        head, is_deeper, _ = name[len(prefix) :].partition("/")
        if is_deeper:
            entry = folders.setdefault(head, {"name": head, "files": 0, "bytes": 0})
            entry["files"] += 1
            entry["bytes"] += size
        else:
            found.append({"name": head, "bytes": size, "kind": kind(head)})
    if prefix and not folders and not found:
        raise InputError(f"There is no folder {path!r} in {row.address}.")
    return {"path": prefix.rstrip("/"), "folders": list(folders.values()), "files": found}


def sizes(root: Path, row: Row) -> dict[str, int]:
    """Bytes of every file of an artifact by its name: as committed, or as it stands if it is not."""
    folder = _folder(root, row)
    data = (folder / records.FILES).read_if_present() if row.state == "built" else None
    if data is not None:
        return {
            name: size
            for name, (size, _) in msgspec.json.decode(data, type=dict[str, tuple[int, str]]).items()
        }
    return {file.relative_to(folder): file.size() for file in tree.content(folder)}


def preview(root: Path, row: Row, path: str, page: tuple[int, int] = (0, 50)) -> dict[str, Any]:
    """Rows of a table, a JSON value, or a piece of text; `page` is offset and count (bytes for text)."""
    file = _file(root, row, path)
    form, size = kind(path), file.size()
    told: dict[str, Any] = {"path": path, "kind": form, "bytes": size, "row_count": None, "offset": page[0]}
    if form == "binary":
        return told
    if form == "text":
        return told | _text(file, page[0], size)
    stem = path.removesuffix(".gz").removesuffix(".zst")
    if stem.endswith((".json", ".jsonl", ".ndjson")):
        if size > JSON_BYTES:
            raise InputError(
                f"{path} has {size} bytes; JSON is shown up to {JSON_BYTES}. Read it with a query."
            )
        return told | (_json(file) if stem.endswith(".json") else _lines(file, *page))
    return told | _table(file, *page)


def output(root: Path, row: Row, _path: str, offset: int = 0) -> dict[str, Any]:
    """What the newest attempt printed, from byte `offset` on; `next` is where to go on."""
    log = claims.claim_path(root / row.name / row.version, row.attempt, "log")
    data = (log.read_if_present() if row.attempt else None) or b""
    piece = data[offset : offset + TEXT_BYTES]
    text = piece.decode(errors="replace")
    return {
        "attempt": row.attempt,
        "text": text,
        "offset": offset,
        "next": offset + len(piece),
        "bytes": len(data),
    }


def as_csv(parquet: bytes) -> bytes:
    """A result as CSV with a header."""
    import pyarrow.csv
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.csv.write_csv(pyarrow.parquet.read_table(io.BytesIO(parquet)), out)
    return out.getvalue()


def _folder(root: Path, row: Row) -> Path:
    return root / row.name / row.version


def _file(root: Path, row: Row, path: str) -> Path:
    if not path or any(part.startswith(".") or not part for part in path.split("/")):
        raise ConfigError(f"path={path!r} is no file of {row.address}. Take one that /files names.")
    if row.source is not None:
        raise ConfigError(
            f"{row.address} is adopted data at {row.source}; only files below {root} are shown."
        )
    return _folder(root, row) / path


def _table(file: Path, offset: int, count: int) -> dict[str, Any]:
    """Through DuckDB, which also reads pages that pyarrow refuses (T21)."""
    form = "parquet" if file.name.endswith(".parquet") else "csv"
    options = ", hive_partitioning = false" if form == "parquet" else ""
    with query_engine.local_copy(file) as place:
        source = f"FROM read_{form}({query_engine.text(str(place))}{options})"
        limits = Limits(timeout_s=20, memory_bytes=query_engine.memory_bytes(0.1))
        columns, rows = query_engine.rows(source, limits, file=str(place), offset=offset, count=count)
        _, counted = query_engine.rows(f"SELECT count(*) {source}", limits, file=str(place), count=1)
    return {"columns": columns, "rows": rows, "row_count": counted[0][0]}


def _json(file: Path) -> dict[str, Any]:
    data = b"".join(_plain(file))
    try:
        return {"text": msgspec.json.format(data, indent=2).decode(errors="replace")}
    except msgspec.DecodeError as error:
        raise InputError(f"{file.name} is no JSON: {error}.") from error


def _lines(file: Path, offset: int, count: int) -> dict[str, Any]:
    """JSON lines as a table, with every key of the page as a column."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(islice(_split(file), offset, offset + count), offset + 1):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise InputError(f"{file.name}, line {number} is no JSON: {error}.") from error
        rows.append(value if isinstance(value, dict) else {"value": value})
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "columns": [{"name": name, "type": "JSON"} for name in names],
        "rows": [[row.get(name) for name in names] for row in rows],
    }


def _text(file: Path, offset: int, size: int) -> dict[str, Any]:
    data = file.read_bytes() if not file.is_local else _piece(file.local, offset)
    piece = data[offset : offset + TEXT_BYTES] if not file.is_local else data
    return {"text": piece.decode(errors="replace"), "next": min(size, offset + len(piece))}


def _piece(file: pathlib.Path, offset: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(TEXT_BYTES)


def _plain(file: Path) -> Iterator[bytes]:
    """The content, unpacked, piece by piece and never more than JSON_BYTES."""
    packed = io.BytesIO(file.read_bytes())
    if file.name.endswith(".gz"):
        opened: Any = gzip.GzipFile(fileobj=packed)
    elif file.name.endswith(".zst"):
        import zstandard

        opened = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    else:
        opened = packed
    left = JSON_BYTES
    while piece := opened.read(1 << 20):
        left -= len(piece)
        if left < 0:
            raise InputError(f"{file.name} unpacks to more than {JSON_BYTES} bytes. Read it with a query.")
        yield piece


def _split(file: Path) -> Iterator[bytes]:
    rest = b""
    for piece in _plain(file):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest
