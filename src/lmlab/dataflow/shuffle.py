"""Moving rows to partitions through files that any host can read: each mapper writes one, a reducer reads its
pieces of all of them, by range.

Tables: `scatter` and `gather`, for partitions that fit in memory. Records: `scatter_records` and `merge`, for
keys of any size: a mapper sorts what fits in its buffer and writes it as a *run* for every target; a reducer
merges runs, a batch of each at a time. Files are Arrow IPC; nothing here depends on who runs first.
"""

import heapq
import io
import pickle
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from lmlab.core.errors import InputError, StorageError
from lmlab.storage import Path

ROUND_BYTES = 64 << 20
"""What a mapper holds before it sorts and writes."""
BATCH_BYTES = 1 << 20
"""What a reducer holds of each run, unless one record is larger."""
MERGE_BYTES = 96 << 20
"""What a reducer holds of all runs; with more runs than that it merges some of them to a file first."""
RECORDS = pa.schema([(name, pa.large_binary()) for name in ("key", "sort", "record")])
Record = Any
Order = Callable[[Record], Any]
Sorted = tuple[bytes, bytes, bytes]
"""Key and sort value as bytes in their order, and the record pickled, so that every type comes back."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def scatter(
    path: Path, rounds: Iterable[tuple[pa.Table, np.ndarray]], targets: int, schema: pa.Schema
) -> None:
    """Write tables to `path`, each with an array that gives the target (0 … targets-1) of every row.

    A round is one batch for every target (an empty one where there is nothing), so the batches of target t
    are t, t + n, t + 2n, … and no index is needed.
    """
    with path.open_writer() as file, pa.ipc.new_file(file, schema, options=_OPTIONS) as writer:
        for table, target_of_row in rounds:
            order = np.argsort(target_of_row, kind="stable")
            ends = np.searchsorted(target_of_row[order], np.arange(targets), side="right").tolist()
            for start, end in zip([0, *ends[:-1]], ends, strict=True):
                part = table.take(order[start:end]).combine_chunks().to_batches()
                writer.write_batch(part[0] if part else pa.RecordBatch.from_pylist([], schema=schema))


def gather(paths: Sequence[Path], target: int, targets: int, schema: pa.Schema) -> pa.Table:
    """All rows of one target, in the order of the files and within them as written."""
    batches = []
    for path in paths:
        with path.open() as source, pa.ipc.open_file(source) as reader:
            batches += [reader.get_batch(i) for i in range(target, reader.num_record_batches, targets)]
    return pa.Table.from_batches(batches, schema=schema).combine_chunks()


@dataclass(frozen=True)
class Shuffle:
    """How records find their partition and their place in it."""

    key: str | Order
    """A column, or a function of the record."""
    sort: str | Order | None
    """Orders the records of a key; None leaves them as they came."""
    combine: Callable[[Any, Iterator[Record]], Any] | None
    """Applied to the records of a key in each mapper's buffer, before they are written."""
    targets: int


@dataclass
class Run:
    """Sorted records of one target within a file."""

    path: Path
    offset: int = 0
    lengths: list[int] = field(default_factory=list)
    """Bytes of each batch in the file; they follow one another."""
    rows: int = 0
    size_bytes: int = 0
    """Unpacked."""
    largest_bytes: int = 0
    """Of one batch, unpacked."""


def scatter_records(path: Path, records: Iterable[Sorted], shuffle: Shuffle) -> dict[int, list[Run]]:
    """Write what `ordered_record` gives to `path`; the runs of each target, in the order of the records."""
    runs: dict[int, list[Run]] = {}
    with _new_stream(path) as (file, writer):
        for rows in _rounds(records, shuffle):
            rows.sort(key=itemgetter(0, 1, 2))
            for target, part in groupby(rows, itemgetter(0)):
                ordered: Iterator[Sorted] = (row[1:] for row in part)
                if shuffle.combine is not None:
                    ordered = _combined(ordered, shuffle)
                runs.setdefault(target, []).append(_write_run(path, file, writer, ordered))
    return runs


def _rounds(records: Iterable[Sorted], shuffle: Shuffle) -> Iterator[list[tuple[int, bytes, bytes, bytes]]]:
    rows, size = [], 0
    for row in records:
        rows.append((xxhash.xxh3_64_intdigest(row[0]) % shuffle.targets, *row))
        size += 256 + len(row[0]) + len(row[1]) + len(row[2])
        if size >= ROUND_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


def ordered_record(record: Record, shuffle: Shuffle) -> Sorted:
    """A record as it is written."""
    sort = b"" if shuffle.sort is None else ordered(value_of(record, shuffle.sort), "sort value")
    try:
        packed = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(f"it can't be sent to a reducer ({error}). Make it of plain values.") from error
    return ordered(value_of(record, shuffle.key), "key"), sort, packed


def value_of(record: Record, order: str | Order) -> Any:
    """The column of a record, or what a function makes of it."""
    if not isinstance(order, str):
        return order(record)
    try:
        return record[order]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"it has no column {order!r}: {record!r:.80}. Name one that all records have."
        ) from error


def _combined(rows: Iterator[Sorted], shuffle: Shuffle) -> Iterator[Sorted]:
    assert shuffle.combine is not None
    for _, group in groupby(rows, itemgetter(0)):
        for record in reduced(shuffle.combine, shuffle.key, (row[2] for row in group)):
            yield ordered_record(record, shuffle)


def decode(packed: bytes) -> Record:
    """A record as it was."""
    return pickle.loads(packed)  # noqa: S301 - our own mapper wrote it


def reduced(function: Callable[..., Any], key: str | Order, packed: Iterator[bytes]) -> Iterator[Record]:
    """What a reducer makes of the records of one key: one record, or an iterator of any number."""
    first = decode(next(packed))
    made = function(value_of(first, key), chain([first], map(decode, packed)))
    yield from made if isinstance(made, Iterator) else (made,)


@contextmanager
def _new_stream(path: Path) -> Generator[tuple[io.BufferedIOBase, Any]]:
    with path.open_writer() as file, pa.ipc.new_stream(file, RECORDS, options=_OPTIONS) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], RECORDS))  # the schema comes with the first batch
        yield file, writer


def _write_run(path: Path, file: io.BufferedIOBase, writer: Any, rows: Iterable[Sorted]) -> Run:
    run = Run(path, file.tell())
    for batch, size in _batches(rows):
        before = file.tell()
        writer.write_batch(batch)
        run.lengths.append(file.tell() - before)
        run.rows += batch.num_rows
        run.size_bytes += size
        run.largest_bytes = max(run.largest_bytes, size)
    return run


def _batches(rows: Iterable[Sorted]) -> Iterator[tuple[pa.RecordBatch, int]]:
    held: list[Sorted] = []
    size = 0
    for row in rows:
        held.append(row)
        size += len(row[0]) + len(row[1]) + len(row[2])
        if size >= BATCH_BYTES:
            yield _batch(held), size
            held, size = [], 0
    if held:
        yield _batch(held), size


def _batch(rows: list[Sorted]) -> pa.RecordBatch:
    columns = [pa.array(column, pa.large_binary()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def merge(runs: Sequence[Run], work: Path) -> Iterator[Sorted]:
    """All records of `runs` in order, equal ones as the runs stand; `work` is for what would not fit."""
    runs, level = list(runs), 0
    while len(runs) > 2 and sum(run.largest_bytes for run in runs) > MERGE_BYTES:
        runs = [_spilled(group, work / f"{level}-{i}.arrow") for i, group in enumerate(_fitting(runs))]
        level += 1
    merged = heapq.merge(*(_read_run(run, place) for place, run in enumerate(runs)))
    yield from ((key, sort, record) for key, sort, _, record in merged)
    if level:
        work.remove_tree()


def _fitting(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Neighbours, at least two together, that can be merged at once."""
    group: list[Run] = []
    for run in runs:
        if len(group) > 1 and sum(each.largest_bytes for each in (*group, run)) > MERGE_BYTES:
            yield group
            group = []
        group.append(run)
    yield group


def _spilled(runs: list[Run], path: Path) -> Run:
    with _new_stream(path) as (file, writer):
        return _write_run(path, file, writer, merge(runs, path.parent / "never"))


def _read_run(run: Run, place: int) -> Iterator[tuple[bytes, bytes, int, bytes]]:
    """No file is held open between batches, so any number of runs can be merged."""
    offset = run.offset
    for length in run.lengths:
        packed = run.path.read_range(offset, length)
        if len(packed) != length:
            raise StorageError(f"{run.path} ends at {offset + len(packed):,} bytes: it was cut. Run again.")
        batch = pa.ipc.read_record_batch(pa.py_buffer(packed), RECORDS)
        keys, sorts, records = (column.to_pylist() for column in batch.columns)
        yield from zip(keys, sorts, [place] * len(keys), records, strict=True)
        offset += length


def ordered(value: Any, what: str = "value") -> bytes:
    """Bytes that compare as the values do: null < bool < number < text < bytes < tuple; 1 equals 1.0.

    >>> ordered(2) < ordered(2.5) < ordered(10) < ordered("a") < ordered("b") < ordered(("b", 1))
    True
    """
    match value:
        case str():
            return b"\4" + value.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0"
        case None:
            return b"\1"
        case bool():
            return b"\2\1" if value else b"\2\0"
        case int() if abs(value) < 1 << 64:
            # A float, and what its 53 bits leave of the number.
            return _ordered_float(float(value)) + (value - int(float(value)) + (1 << 15)).to_bytes(2, "big")
        case float():
            return _ordered_float(value) + b"\x80\0"
        case bytes():
            return b"\5" + value.replace(b"\0", b"\0\xff") + b"\0"
        case tuple() | list():
            return b"\6" + b"".join(ordered(each, what) for each in value) + b"\0"
    raise InputError(
        f"the {what} {value!r:.80} is of type {type(value).__name__}, which has no order of its own. "
        "Give null, bool, a number below 2^64, text, bytes or a tuple of these."
    )


def _ordered_float(value: float) -> bytes:
    bits = struct.unpack(">Q", struct.pack(">d", value + 0.0))[0]  # + 0.0 makes -0.0 the 0.0 that it equals
    return b"\3" + (bits ^ ((1 << 64) - 1 if bits >> 63 else 1 << 63)).to_bytes(8, "big")
