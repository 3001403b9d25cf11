"""What data sets of the tests are made of: functions that worker processes can import."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lmlab.core.errors import InputError
from lmlab.dataflow import ShardInfo, count, shared


def add_length(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "length": len(row["text"])}


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return ({"word": word, "id": row["id"]} for word in row["text"].split())


def is_even(row: dict[str, Any]) -> bool:
    return row["n"] % 2 == 0


def numbered(rows: Iterator[Any], info: ShardInfo) -> Iterator[Any]:
    return ({**row, "shard": f"{info.index}/{info.total} {info.name}"} for row in rows)


def totals(word: str, rows: Iterator[Any]) -> dict[str, Any]:
    return {"word": word, "count": sum(row.get("count", 1) for row in rows)}


def in_order(key: Any, rows: Iterator[Any]) -> Iterator[Any]:
    return ({"key": key, "place": place, **row} for place, row in enumerate(rows))


def sizes(key: Any, rows: Iterator[Any]) -> dict[str, Any]:
    return {"key": key, "rows": sum(1 for _ in rows)}


def longest(rows: Iterator[Any]) -> int:
    return max((len(row["text"]) for row in rows), default=0)


def upper(table: pa.Table) -> pa.Table:
    return table.set_column(1, "text", pc.utf8_upper(table["text"]))


def poisoned(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 17:
        if row.get("marks"):
            (Path(row["marks"]) / str(time.monotonic_ns())).touch()
        raise ValueError("no such entity")
    return row


def unreadable(row: dict[str, Any]) -> dict[str, Any]:
    raise InputError("this text is no text")


def process(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.05)
    return {**row, "pid": os.getpid()}


def looked_up(row: dict[str, Any]) -> dict[str, Any]:
    table = shared("names")
    return {**row, "name": table[row["n"]], "pid": os.getpid(), "loaded": table.loads}


class Table(dict):
    """Counts how often this process has loaded one."""

    loads = 0

    def __reduce__(self) -> Any:
        return _load, (dict(self),)


def _load(values: dict[Any, Any]) -> Table:
    Table.loads += 1
    return Table(values)


def slow_marked(row: dict[str, Any]) -> dict[str, Any]:
    """Leaves a mark for every record it is given, and counts it."""
    if row["n"] % 10 == 0:
        with Path(row["marks"]).open("a") as file:
            file.write(f"{row['n']}\n")
    count("seen")
    if row["n"] % 100 == 99:
        time.sleep(row["pause_s"])
    return {"id": row["n"] % 70, "n": row["n"]}


def killed_once(row: dict[str, Any]) -> dict[str, Any]:
    mark = Path(row["marks"])
    if row["n"] == 50 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": row["n"]}


def on_a_full_disk(row: dict[str, Any]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    return row


def many(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Records of about 10 kB that do not compress, nine of ten with one key."""
    for number in range(row["records"]):
        key = "hot" if number % 10 else f"{row['n']}-{number}"
        yield {"key": key, "text": os.urandom(5_000).hex()}


def is_positive(row: dict[str, Any]) -> bool:
    return row["n"] > 0


def is_small(row: dict[str, Any]) -> bool:
    return row["id"] < 10


def key_as_id(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["key"], "rows": row["rows"]}


def fails_on_tables(table: pa.Table) -> pa.Table:
    return table.slice(0, len(table) // 0)


def fails_late(key: Any, rows: Iterator[Any]) -> Iterator[Any]:
    for row in rows:
        if row["n"] == 13:
            raise ValueError("no such number")
    yield {"key": key}


def is_european(row: dict[str, Any]) -> bool:
    return row["language"] in {"en", "de", "fr", "es", "it", "pl"}


def nothing(_given: Any) -> None:
    return None


class Marker:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "mark": self.mark}


def with_generator(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "endless": (number for number in row)}
