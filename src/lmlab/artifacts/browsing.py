"""What pages ask about artifacts, answered from the catalog and from single files: no listing, no scan.

Every view is `view(root, snapshot, asked) -> JSON`; `asked` holds the parameters as text.
"""

import collections
import gzip
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from lmlab.artifacts import claims, history, query_engine as engine, records
from lmlab.artifacts.catalog import Row, Snapshot
from lmlab.core.errors import ArtifactError, ConfigError, InputError
from lmlab.storage import Path, budget, tree

Asked = Mapping[str, str]
Answer = dict[str, Any]
COLUMNS = (
    *("address", "name", "version", "state", "step", "result_type"),
    *("files", "bytes", "finished", "seconds", "user", "error"),
)
OFFENCE_BYTES = 10 << 30
"""Who read more across regions stands among the offenders."""
JSON_BYTES, TEXT_BYTES = 100 << 20, 256 << 10
"""The largest JSON file that is shown; of text so much at a time."""
LIMITS = {"timeout_s": 20.0, "share": 0.1}
KINDS = {
    **dict.fromkeys(("parquet", "csv", "tsv", "jsonl", "ndjson"), "table"),
    **dict.fromkeys(("txt", "md", "log", "py", "html", "svg", "toml", "yaml", "yml", "jinja"), "text"),
    "json": "json",
}


def listing(_root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """A page of the table: `q` (words), `state`, `step`, `sort` (-column: descending), `page`, `size`."""
    words = asked.get("q", "").lower().split()
    found = [row for row in snapshot.rows.values() if all(word in _words(row) for word in words)]
    found = [row for row in found if asked.get("step") in (None, "", row.step)]
    states = collections.Counter(row.state for row in found)
    wanted = asked["state"].split(",") if asked.get("state") else states
    rows = [row for row in found if row.state in wanted]
    sort = asked.get("sort") or "-finished"
    column = sort.removeprefix("-")
    if column not in COLUMNS:
        raise ConfigError(f"sort={sort!r} is no column. Sort by one of {', '.join(COLUMNS)}.")
    known = [row for row in rows if getattr(row, column) is not None]
    known.sort(key=lambda row: (getattr(row, column), row.address), reverse=sort.startswith("-"))
    unknown = [row for row in rows if getattr(row, column) is None]
    # What runs or failed has not finished: it comes first where the newest do.
    ordered = [*unknown, *known] if sort == "-finished" else [*known, *unknown]
    size = max(1, min(number(asked, "size", 50), 1000))
    page = max(1, min(number(asked, "page", 1), -(-len(rows) // size)))
    shown = [{name: getattr(row, name) for name in COLUMNS} for row in ordered[(page - 1) * size :][:size]]
    return {"total": len(rows), "page": page, "size": size, "states": states, "rows": shown}


def artifact(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """Everything about one: its record or its last claim, its versions and neighbours."""
    row = snapshot.row(asked["address"])
    entry = history.entry(root, row.address)
    versions = sorted((r for r in snapshot.rows.values() if r.name == row.name), key=lambda r: r.version)

    def states(addresses: Any) -> list[dict[str, str]]:
        known = {address: snapshot.rows.get(address) for address in dict.fromkeys(addresses)}
        return [{"address": a, "state": other.state if other else "missing"} for a, other in known.items()]

    return {
        **{name: getattr(row, name) for name in ("address", "state", "owner", "started", "error")},
        "record": entry.record,
        "config": entry.owner.config if entry.owner else None,
        "attempt": entry.attempt,
        "traceback": entry.beat.traceback if entry.beat and not entry.record else None,
        "versions": [
            {name: getattr(one, name) for name in ("address", "version", "state", "finished")}
            for one in reversed(versions)
        ],
        "inputs": states(row.inputs),
        "after": states(row.after),
        "used_by": states(snapshot.users.get(row.address, [])),
        "log": entry.log is not None,
    }


def lineage(_root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """`up` and `down` steps around one, which may be missing if others name it."""
    address = asked["address"]
    if address not in snapshot.users:
        address = snapshot.row(address).address
    return snapshot.lineage(address, number(asked, "up", 1), number(asked, "down", 1))


def diff(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """How `old` and `new` differ, by section."""
    rows = [snapshot.row(asked.get(side, "")) for side in ("old", "new")]
    old, new = (records.load(root / row.name / row.version) for row in rows)
    if old is None or new is None:
        raise ArtifactError("One of the two is not built, so there is no record to compare.")
    return {"sections": history.compare(old, new)}


def files(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """The folder `path` of an artifact: its folders with all that they hold, and its files."""
    row, prefix = snapshot.row(asked["address"]), asked.get("path", "").strip("/")
    prefix = f"{prefix}/" if prefix else ""
    folders: dict[str, dict[str, Any]] = {}
    found = []
    for name, size in sorted(sizes(root, row).items()):
        head, is_deeper, _ = name[len(prefix) :].partition("/")
        if not name.startswith(prefix):
            continue
        if is_deeper:
            folder = folders.setdefault(head, {"name": head, "files": 0, "bytes": 0})
            folder |= {"files": folder["files"] + 1, "bytes": folder["bytes"] + size}
        else:
            found.append({"name": head, "bytes": size, "kind": kind(head)})
    return {"path": prefix.rstrip("/"), "folders": list(folders.values()), "files": found}


def preview(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """The file `path`: `count` rows from `offset` on, a JSON value, or text from byte `offset` on."""
    row, path, offset = snapshot.row(asked["address"]), asked.get("path", ""), number(asked, "offset", 0)
    size = sizes(root, row).get(path)
    if size is None:
        where = f"is adopted data at {row.source}, and only files" if row.source else f"has no file {path!r}"
        raise ArtifactError(f"{row.address} {where} below {root}. /files names those that are shown.")
    file, form = root / row.name / row.version / path, kind(path)
    told = {"path": path, "kind": form, "bytes": size, "offset": offset, "row_count": None}
    if form == "text":
        piece = file.read_range(offset, TEXT_BYTES)
        return told | {"text": piece.decode(errors="replace"), "next": offset + len(piece)}
    if form == "table":
        count = min(number(asked, "count", 50), 10_000)
        is_json = path.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
        return told | (_lines if is_json else _table)(file, offset, count)
    return told | (_json(file) if form == "json" else {})


def output(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """What the newest attempt printed, from byte `offset` on; `next` is where to go on."""
    row, offset = snapshot.row(asked["address"]), number(asked, "offset", 0)
    log = claims.claim_path(root / row.name / row.version, row.attempt, "log")
    data = (log.read_if_present() if row.attempt else None) or b""
    piece = data[offset : offset + TEXT_BYTES]
    told = {"attempt": row.attempt, "bytes": len(data), "offset": offset, "next": offset + len(piece)}
    return {**told, "text": piece.decode(errors="replace")}


def egress(root: Path, _snapshot: Snapshot, asked: Asked) -> Answer:
    """What was read across regions in the last `hours`, by user."""
    now = time.time()
    since = now - 3600 * number(asked, "hours", 24)
    rows = budget.rows(root, since)
    users: dict[str, dict[str, Any]] = {}
    for row in rows:
        user = users.setdefault(row.user, {"user": row.user, "bytes": 0, "transfers": 0})
        user |= {"bytes": user["bytes"] + row.bytes, "transfers": user["transfers"] + 1}
    ordered = sorted(users.values(), key=lambda user: -user["bytes"])
    return {
        "from": since,
        "to": now,
        "total_bytes": sum(row.bytes for row in rows),
        "users": ordered,
        "offenders": [user for user in ordered if user["bytes"] > OFFENCE_BYTES],
        "rows": rows[:-1001:-1],
    }


def sizes(root: Path, row: Row) -> dict[str, int]:
    """Bytes of every file of an artifact by its name: as committed, or as they stand if it is not built."""
    folder = root / row.name / row.version
    data = (folder / records.FILES).read_if_present() if row.state == "built" else None
    if data is not None:
        return {name: size for name, (size, _) in msgspec.json.decode(data, type=tree.Listing).items()}
    return {file.relative_to(folder): file.size() for file in tree.content(folder)}


def kind(name: str) -> str:
    """table, json, text or binary, by a file's name; what is packed is opened only if it is no text."""
    plain = name.removesuffix(".gz").removesuffix(".zst")
    found = KINDS.get(plain.rpartition(".")[2].lower(), "binary")
    return "binary" if plain != name and found == "text" else found


def number(asked: Asked, name: str, default: int) -> int:
    """A parameter as a whole number."""
    text = asked.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ConfigError(f"{name}={text[:40]!r} is no whole number from 0 on. Correct it.")
    return int(text)


def _words(row: Row) -> str:
    return " ".join(filter(None, (row.address, row.state, row.step, row.result_type, row.user))).lower()


def _table(file: Path, offset: int, count: int) -> Answer:
    """Through DuckDB, which also reads pages that pyarrow refuses (T21)."""
    with engine.at_hand([file]) as files:
        is_parquet = file.name.endswith(".parquet")
        source = engine.table(files) if is_parquet else f"FROM read_csv({engine.text(files[0])})"
        columns, rows = engine.rows(source, files, offset, count, **LIMITS)
        _, counted = engine.rows(f"{source} SELECT count(*)", files, 0, 1, **LIMITS)
    return {"columns": columns, "rows": rows, "row_count": counted[0][0]}


def _json(file: Path) -> Answer:
    try:
        return {"text": msgspec.json.format(b"".join(_unpacked(file)), indent=2).decode(errors="replace")}
    except msgspec.DecodeError as error:
        raise InputError(f"{file.name} is no JSON: {error}.") from error


def _lines(file: Path, offset: int, count: int) -> Answer:
    """JSON lines as a table, with every key of the page as a column."""
    rows: list[dict[str, Any]] = []
    for line_number, line in enumerate(islice(_split(file), offset, offset + count), offset + 1):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise InputError(f"{file.name}, line {line_number} is no JSON: {error}.") from error
        rows.append(value if isinstance(value, dict) else {"value": value})
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [{"name": name, "type": "JSON"} for name in names]
    return {"columns": columns, "rows": [[row.get(name) for name in names] for row in rows]}


def _split(file: Path) -> Iterator[bytes]:
    rest = b""
    for piece in _unpacked(file):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


def _unpacked(file: Path) -> Iterator[bytes]:
    """The content piece by piece, never more than JSON_BYTES."""
    import zstandard

    opened: Any = file.open()
    if file.name.endswith(".gz"):
        opened = gzip.GzipFile(fileobj=opened)
    elif file.name.endswith(".zst"):
        opened = zstandard.ZstdDecompressor().stream_reader(opened, read_across_frames=True)
    left = JSON_BYTES
    try:
        with opened as stream:
            while left >= 0 and (piece := stream.read(1 << 20)):
                left -= len(piece)
                yield piece
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{file.name} is damaged and can't be unpacked: {error}.") from error
    if left < 0:
        raise InputError(f"{file.name} holds more than {JSON_BYTES} bytes. Read it with a query.")
