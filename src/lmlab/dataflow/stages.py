"""What a worker does with one shard: read it, pull records through the operations, write the result.

Operations are generators over records or over tables, with conversions in between. A finished shard leaves a
note in `.done/` beside its output, with what it counted, so that a run that goes on trusts only whole files
and its counters cover all shards.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Literal

import msgspec
import orjson
import pyarrow as pa

from lmlab.core.errors import InputError, LmlabError
from lmlab.dataflow import joining
from lmlab.dataflow.counters import Tally, count, counted
from lmlab.dataflow.failures import RecordFailed
from lmlab.dataflow.files import Bad, conform, json_line, parquet_sink, to_table, write_lines
from lmlab.dataflow.sharing import offer
from lmlab.dataflow.shuffle import (
    Run,
    Shuffle,
    decode,
    merge,
    ordered_record,
    reduced,
    scatter_records,
    value_of,
)
from lmlab.dataflow.sources import FilePiece, ListPiece, Reading, RunPiece, Shard, read_rows, read_tables
from lmlab.storage import Path

Stream = Iterator[Any]
TABLE_BYTES = 4 << 20
"""What is held as records before it becomes a table."""


@dataclass(frozen=True)
class ShardInfo:
    """Which shard a function works on."""

    index: int
    total: int
    name: str
    """Its file or files."""


@dataclass(frozen=True)
class Op:
    """One operation: what it is called, the caller's function, and its setting."""

    kind: str
    function: Any = None
    setting: Any = None


@dataclass(frozen=True)
class Sink:
    """Where the records of a stage go."""

    kind: Literal["jsonl", "parquet", "scatter", "fold"]
    pattern: str | Callable[[int, int], str] = ""
    schema: pa.Schema | None = None
    shuffle: Shuffle | None = None
    fold: Callable[[Iterator[Any]], Any] = list


@dataclass(frozen=True)
class Branch:
    """The records of one shard: what is read, and through what they go."""

    shard: Shard
    reading: Reading
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Task:
    """One shard of a stage."""

    info: ShardInfo
    branch: Branch
    sink: Sink
    out: Path | None
    quarantine: Path | None
    """Where records go that fail; None lets the shard fail."""
    identity: str
    """Of the plan: what another plan left here is not taken."""
    shared: dict[str, Path]


@dataclass(frozen=True)
class Done:
    """What became of a shard; its note."""

    identity: str
    output: str | None = None
    size_bytes: int = 0
    tally: Tally = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    """Files that could not be read to their end."""
    schema: bytes | None = None
    runs: dict[int, list[Run]] = field(default_factory=dict)
    value: Any = None


def run_shard(task: Task) -> Done:
    """Do one shard; the output, and after it the note, appear when all is well."""
    with ExitStack() as stack:
        offer(task.shared)
        if task.quarantine is not None:
            task.quarantine.remove()  # of an earlier run
        trace = _Trace(task, stack)
        try:
            done = _DRAINS[task.sink.kind](task, *_pull(task.branch, trace), trace)
        except (LmlabError, RecordFailed):
            raise
        except Exception as error:  # the boundary of one shard: any other failure gets its place
            place = f"record {max(0, trace.index)} or near it of {task.info.name}"
            raise RecordFailed(f"{place}: {type(error).__name__}: {error}") from error
        done = replace(done, unread=tuple(trace.unread))
    if task.out is None:
        return replace(done, tally=counted())
    size_bytes = task.out.size()
    if task.sink.kind != "scatter":
        count("bytes_out", size_bytes)
    done = replace(done, output=str(task.out), size_bytes=size_bytes, tally=counted())
    note(done)
    return done


def note(done: Done) -> None:
    """Say beside the output of a shard that it is whole, and what it counted."""
    _note(Path(str(done.output))).write_bytes(msgspec.json.encode(replace(done, value=None), enc_hook=str))


def recorded(task: Task) -> Done | None:
    """What a finished shard noted earlier, if its output is still the one it wrote."""
    if task.out is None or (raw := _note(task.out).read_if_present()) is None:
        return None
    done = msgspec.json.decode(raw, type=Done, dec_hook=lambda _, text: Path(text))
    is_whole = done.identity == task.identity and task.out.exists() and task.out.size() == done.size_bytes
    return done if is_whole else None


def _note(out: Path) -> Path:
    return out.parent / ".done" / f"{out.name}.json"


class _Trace:
    """How far the work on a shard is: names the record at which it fails, or sets that record aside."""

    def __init__(self, task: Task, stack: ExitStack) -> None:
        self.task, self.index = task, -1
        self.unread: list[str] = []
        self._stack = stack
        self._file: io.BufferedIOBase | None = None

    def may_set_aside(self, error: Exception) -> bool:
        """Whether the record is at fault, and the caller wants to go on without it."""
        is_ours = isinstance(error, MemoryError | OSError | LmlabError) and not isinstance(error, InputError)
        return self.task.quarantine is not None and not is_ours

    def failed(self, record: Any, error: Exception) -> None:
        """A function failed at `record`."""
        name, told = _name(record), f"{type(error).__name__}: {error}"
        if isinstance(error, LmlabError) and not isinstance(error, InputError):
            raise error
        if self.may_set_aside(error):
            self._put(name, told, record)
            return
        where = f"record {self.index}{name and f' ({name})'} of {self.task.info.name}"
        if isinstance(error, InputError):
            raise InputError(f"{where}: {error}") from error
        raise RecordFailed(f"{where}: {told}") from error

    def bad_line(self, path: Path) -> Bad | None:
        """Takes what is broken in a file, if that may be set aside."""

        def put(number: int, error: str, line: bytes) -> None:
            self._put(f"{path.name}:{number}", error, line.decode(errors="replace"))
            if not line:
                self.unread.append(str(path))

        return None if self.task.quarantine is None else put

    def _put(self, name: str, error: str, record: Any) -> None:
        assert self.task.quarantine is not None
        if self._file is None:
            self._file = self._stack.enter_context(self.task.quarantine.open_writer())
        row = {"shard": self.task.info.name, "index": self.index, "id": name, "error": error}
        row["record"] = record
        self._file.write(orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS) + b"\n")
        count("quarantined")


def _name(record: Any) -> str:
    return str(record.get("id", record.get("source_id", "")))[:80] if isinstance(record, dict) else ""


# -- streams -------------------------------------------------------------------------------------------------


def _pull(branch: Branch, trace: _Trace) -> tuple[Stream, bool]:
    """What comes out of a branch, and whether it is batches."""
    formats = {piece.format for piece in branch.shard if isinstance(piece, FilePiece)}
    kinds = [op.kind for op in branch.ops] or [trace.task.sink.kind]
    batched = formats == {"parquet"} and kinds[0] in (*_BATCHWISE, "parquet")
    stream = _read(branch, trace, batched)
    for op in branch.ops:
        if op.kind == "reduce":
            op = replace(op, setting=(op.setting, branch.shard))  # noqa: PLW2901 - what it may read again
        if op.kind in _BATCHWISE:
            stream, batched = _BATCHWISE[op.kind](op, _as_batches(stream, batched, None, trace), trace), True
        else:
            stream, batched = _ROWWISE[op.kind](op, _as_rows(stream, batched), trace), False
    return stream, batched


def _read(branch: Branch, trace: _Trace, batched: bool) -> Stream:
    for piece in branch.shard:
        name = "shuffle_rows_read" if isinstance(piece, RunPiece) else "records_in"
        count(name, 0)  # an empty file is told too
        for each in _pieces(piece, branch.reading, trace, batched):
            size = each.num_rows if batched else 1
            trace.index += size
            count(name, size)
            yield each


def _pieces(piece: Any, reading: Reading, trace: _Trace, batched: bool) -> Stream:
    match piece:
        case ListPiece():
            return iter(piece.records)
        case RunPiece():
            return merge(piece.runs, piece.spill)
        case FilePiece(format="jsonl"):
            return read_rows(piece, reading, trace.bad_line(piece.path))
    return _as_rows(_tables(piece, reading, trace.bad_line(piece.path)), not batched)


def _tables(piece: FilePiece, reading: Reading, bad: Bad | None) -> Stream:
    try:
        yield from read_tables(piece, reading)
    except InputError as error:
        if bad is None:
            raise
        bad(0, str(error), b"")


def _as_rows(stream: Stream, batched: bool) -> Stream:
    return chain.from_iterable(batch.to_pylist() for batch in stream) if batched else stream


def _as_batches(stream: Stream, batched: bool, schema: pa.Schema | None, trace: _Trace) -> Stream:
    """Tables of some megabytes."""
    if batched:
        yield from stream
        return
    rows, size, place = [], 0, trace.task.info.name
    for row in stream:
        rows.append(row)
        size += _weight(row)
        if size >= TABLE_BYTES:
            table = to_table(rows, schema, place)
            rows, size = [], 0
            yield table
    if rows:
        yield to_table(rows, schema, place)


def _weight(value: Any) -> int:
    """About the bytes that a value takes in a table."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return 8 + sum(map(_weight, value.values()))
    return 8 + sum(map(_weight, value)) if isinstance(value, list | tuple) else 8


def _each(call: Callable[[Any, Any], Any]) -> Callable[[Op, Stream, _Trace], Stream]:
    def run(op: Op, rows: Stream, trace: _Trace) -> Stream:
        for row in rows:
            try:
                yield from call(op.function, row)
            except Exception as error:  # noqa: BLE001 - the boundary of one record: it fails by name or is set aside
                trace.failed(row, error)

    return run


def _reduce(op: Op, rows: Stream, trace: _Trace) -> Stream:
    failed: dict[bytes, Exception] = {}
    by, pieces = op.setting
    for key, group in groupby(rows, itemgetter(0)):
        values = map(itemgetter(2), group)
        packed = next(values)
        try:
            yield from reduced(op.function, by, chain([packed], values))
        except Exception as error:  # noqa: BLE001 - the boundary of one key
            if not trace.may_set_aside(error):
                trace.failed(decode(packed), error)
            failed[key] = error
    # Once more for all records of these keys, since those of one may be more than fit in memory.
    again = chain.from_iterable(merge(piece.runs, piece.spill) for piece in pieces if failed)
    for trace.index, (key, _, packed) in enumerate(again):
        if key in failed:
            trace.failed(decode(packed), failed[key])


def _join(op: Op, rows: Stream, trace: _Trace) -> Stream:
    return joining.merge_join(rows, _as_rows(*_pull(op.setting.right, trace)), op.setting, op.function)


def _as_table(made: Any) -> pa.Table:
    if not isinstance(made, pa.Table | pa.RecordBatch):
        raise InputError(f"map_batches made {type(made).__name__} of a table. Return a pyarrow table.")
    return pa.Table.from_batches([made]) if isinstance(made, pa.RecordBatch) else made


def _where(op: Op, tables: Stream, _trace: _Trace) -> Stream:
    if type(op.function).__module__.startswith("pyarrow"):
        return (table.filter(op.function) for table in tables)
    import polars as pl  # only for its own expressions

    return (pl.from_arrow(table).filter(op.function).to_arrow() for table in tables)


_ROWWISE: dict[str, Callable[[Op, Stream, _Trace], Stream]] = {
    "map": _each(lambda function, row: (function(row),)),
    "flat_map": _each(lambda function, row: function(row)),
    "filter": _each(lambda function, row: (row,) if function(row) else ()),
    "select": _each(lambda names, row: ({name: value_of(row, name) for name in names},)),
    "map_shard": lambda op, rows, trace: iter(op.function(rows, trace.task.info)),
    "window": lambda op, rows, _: iter(lambda: list(islice(rows, op.setting)), []),
    "take": lambda op, rows, _: islice(rows, op.setting),
    "reduce": _reduce,
    "join": _join,
}
_BATCHWISE: dict[str, Callable[[Op, Stream, _Trace], Stream]] = {
    "map_batches": lambda op, tables, _: map(_as_table, map(op.function, tables)),
    "where": _where,
}


# -- sinks ---------------------------------------------------------------------------------------------------


def _counted(stream: Stream) -> Stream:
    count("records_out", 0)
    for each in stream:
        count("records_out", each.num_rows if isinstance(each, pa.Table) else 1)
        yield each


def _drain_jsonl(task: Task, stream: Stream, batched: bool, trace: _Trace) -> Done:
    assert task.out is not None
    lines = _each(lambda _, row: (json_line(row),))(Op("write"), _as_rows(stream, batched), trace)
    write_lines(task.out, _counted(lines))
    return Done(task.identity)


def _drain_parquet(task: Task, stream: Stream, batched: bool, trace: _Trace) -> Done:
    assert task.out is not None
    tables = _counted(_as_batches(stream, batched, task.sink.schema, trace))
    first = next(tables, None)
    schema = task.sink.schema or (pa.schema([]) if first is None else first.schema)
    with parquet_sink(task.out, schema) as sink:
        for table in chain([] if first is None else [first], tables):
            sink.write(conform(table, schema, task.info.name))
    return Done(task.identity, schema=schema.serialize().to_pybytes())


def _drain_scatter(task: Task, stream: Stream, batched: bool, trace: _Trace) -> Done:
    assert task.out is not None
    shuffle = task.sink.shuffle
    assert shuffle is not None
    order = _each(lambda shuffle, row: (ordered_record(row, shuffle),))
    runs = scatter_records(task.out, order(Op("order", shuffle), _as_rows(stream, batched), trace), shuffle)
    every = [run for found in runs.values() for run in found]
    count("shuffle_rows", sum(run.rows for run in every))
    count("shuffle_bytes", sum(run.size_bytes for run in every))
    return Done(task.identity, runs=runs)


def _drain_fold(task: Task, stream: Stream, batched: bool, _trace: _Trace) -> Done:
    return Done(task.identity, value=task.sink.fold(_counted(_as_rows(stream, batched))))


_DRAINS = {"jsonl": _drain_jsonl, "parquet": _drain_parquet, "scatter": _drain_scatter, "fold": _drain_fold}
