"""What pages ask of the catalog: the table of artifacts, one artifact, example queries, transfers by user."""

import collections
from typing import Any

import msgspec

from lmlab.artifacts import history
from lmlab.artifacts.catalog import Row, Snapshot
from lmlab.core.errors import ConfigError
from lmlab.storage import Path, budget

# fmt: off
COLUMNS = (
    "address", "name", "version", "state", "step", "result_type", "files", "bytes", "finished", "seconds",
    "user", "error",
)
# fmt: on
OFFENCE_BYTES = 10 << 30
"""A user above this stands among the offenders of the egress report."""
_EXAMPLES = """
-- The newest artifacts
SELECT address, state, step, bytes, to_timestamp(finished) AS finished
FROM artifacts ORDER BY finished DESC LIMIT 20
-- What failed or died
SELECT address, state, error, owner FROM artifacts WHERE state IN ('failed', 'dead', 'stopped')
-- Time and bytes by step
SELECT step, count(*) AS artifacts, sum(seconds) AS seconds, sum(bytes) AS bytes
FROM artifacts GROUP BY step ORDER BY seconds DESC
-- What is used most
SELECT source, count(*) AS users FROM edges WHERE kind = 'input' GROUP BY source ORDER BY users DESC
-- A field of all recipes
SELECT address, config->>'$.type' AS type, config->>'$.run.seed' AS seed FROM artifacts
-- Transfers between regions by user
SELECT "user", sum(bytes) AS bytes FROM transfers GROUP BY ALL ORDER BY bytes DESC
-- The slowest queries
SELECT sql, seconds, rows, error FROM queries ORDER BY seconds DESC LIMIT 20
-- Documents of a corpus by domain
SELECT meta->>'$.domain' AS domain, count(*) AS documents, sum(strlen(text)) AS bytes
FROM '{{CORPUS}}/train/*.parquet' GROUP BY ALL ORDER BY bytes DESC
-- Why documents were rejected
SELECT split_part(reason, ':', 1) AS why, count(*) AS documents
FROM '{{CORPUS}}/rejected/*/*.parquet' GROUP BY ALL ORDER BY documents DESC
"""


def listing(snapshot: Snapshot, asked: dict[str, str]) -> dict[str, Any]:
    """A page of the table: `q` (text), `state`, `step`, `sort` (-column: descending), `page`, `size`."""
    words = asked.get("q", "").lower().split()
    found = [row for row in snapshot.rows.values() if all(word in _text(row) for word in words)]
    found = [row for row in found if asked.get("step") in (None, "", row.step)]
    states = collections.Counter(row.state for row in found)
    wanted = set(asked["state"].split(",")) if asked.get("state") else set(states)
    rows = [row for row in found if row.state in wanted]
    sort = asked.get("sort") or "-finished"
    column = sort.removeprefix("-")
    if column not in COLUMNS:
        raise ConfigError(f"sort={sort!r} is no column. Sort by one of {', '.join(COLUMNS)}.")
    known = [row for row in rows if getattr(row, column) is not None]
    known.sort(key=lambda row: (getattr(row, column), row.address), reverse=sort.startswith("-"))
    # What runs or failed has no end yet: it comes first where the newest do.
    unknown = [row for row in rows if getattr(row, column) is None]
    ordered = [*unknown, *known] if sort == "-finished" else [*known, *unknown]
    size = max(1, min(_whole(asked, "size", 50), 1000))
    pages = max(1, -(-len(rows) // size))
    page = max(1, min(_whole(asked, "page", 1), pages))
    shown = [
        {name: getattr(row, name) for name in COLUMNS} for row in ordered[(page - 1) * size : page * size]
    ]
    return {"total": len(rows), "page": page, "size": size, "states": states, "rows": shown}


def artifact(root: Path, snapshot: Snapshot, row: Row) -> dict[str, Any]:
    """Everything about one: its record or its last claim, its versions and neighbours."""
    entry = history.entry(root, row.address)
    versions = [one for one in snapshot.rows.values() if one.name == row.name]
    return {
        "address": row.address,
        "state": row.state,
        "record": msgspec.to_builtins(entry.record),
        "config": None if entry.owner is None else entry.owner.config,
        "attempt": entry.attempt,
        "owner": row.owner,
        "started": row.started,
        "error": row.error,
        "traceback": entry.beat.traceback if entry.beat and not entry.record else None,
        "versions": [_brief(one) for one in sorted(versions, key=lambda one: one.version, reverse=True)],
        "inputs": _states(snapshot, row.inputs),
        "after": _states(snapshot, row.after),
        "used_by": _states(snapshot, snapshot.users.get(row.address, [])),
        "log": entry.log is not None,
    }


def examples(snapshot: Snapshot) -> list[dict[str, str]]:
    """Queries to begin with; those about a corpus only if there is one."""
    corpora = [row for row in snapshot.rows.values() if row.result_type == "Corpus"]
    newest = max(corpora, key=lambda row: row.finished or 0.0, default=None)
    parts = [part.partition("\n") for part in _EXAMPLES.strip().split("-- ")[1:]]
    found = [(title, sql.strip()) for title, _, sql in parts if newest or "CORPUS" not in sql]
    address = newest.address if newest else ""
    return [{"title": title, "sql": sql.replace("CORPUS", address)} for title, sql in found]


def egress(root: Path, hours: float, now: float) -> dict[str, Any]:
    """What was read across regions in the last hours, by user; the offenders are those above 10 GiB."""
    since = now - hours * 3600
    rows = budget.rows(root, since)
    users: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = users.setdefault(row.user, {"user": row.user, "bytes": 0, "transfers": 0})
        entry["bytes"] += row.bytes
        entry["transfers"] += 1
    ordered = sorted(users.values(), key=lambda entry: -entry["bytes"])
    offenders = [entry for entry in ordered if entry["bytes"] > OFFENCE_BYTES]
    total = sum(entry["bytes"] for entry in ordered)
    return {
        "from": since,
        "to": now,
        "total_bytes": total,
        "users": ordered,
        "offenders": offenders,
        "rows": rows,
    }


def _text(row: Row) -> str:
    return f"{row.address} {row.state} {row.step} {row.result_type} {row.user}".lower()


def _brief(row: Row) -> dict[str, Any]:
    return {"address": row.address, "version": row.version, "state": row.state, "finished": row.finished}


def _states(snapshot: Snapshot, addresses: Any) -> list[dict[str, str]]:
    rows = snapshot.rows
    return [
        {"address": a, "state": rows[a].state if a in rows else "missing"} for a in dict.fromkeys(addresses)
    ]


def _whole(asked: dict[str, str], name: str, default: int) -> int:
    text = asked.get(name) or str(default)
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} is no whole number.")
    return int(text)
