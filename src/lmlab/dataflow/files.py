"""Reading and writing one Parquet or JSON-lines file anywhere: published by rename, bad ones refused by name.

Everything streams: a reader holds a row group or a line, a writer a row group. Strings are `large_string`,
whose offsets do not end at 2 GiB.
"""

import io
import logging
import math
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.core.errors import InputError
from lmlab.dataflow.counters import count
from lmlab.storage import Path

ROW_GROUP_BYTES = 16 << 20
LONG_TEXT = ("text", "meta")  # min and max of these would fill page headers with megabytes and help nobody
LONGEST_LINE_BYTES = 1 << 30
"""A longer line is refused: it is a bomb, or no JSON lines."""
JSONL = (".jsonl", ".ndjson", ".jsonl.zst", ".jsonl.gz", ".json.gz", ".json.zst")
_BLOCK = 1 << 20
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
Bad = Callable[[int, str, bytes], None]
"""Takes the number of a broken line, what is wrong with it, and its bytes."""


class ParquetSink:
    """Gathers tables into row groups of about 16 MiB; the same tables give the same bytes."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer, self._held, self._size = writer, [], 0

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a row group is full."""
        self._held.append(table)
        self._size += table.nbytes
        if self._size >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            groups = max(1, round(self._size / ROW_GROUP_BYTES))
            rows = math.ceil(sum(table.num_rows for table in self._held) / groups)
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=max(1, rows))
        self._held, self._size = [], 0
        pa.default_memory_pool().release_unused()  # else it keeps 100 MB of what is freed


@contextmanager
def parquet_sink(path: Path, schema: pa.Schema) -> Generator[ParquetSink]:
    """A sink whose file, packed with zstd, becomes visible when the block ends well."""
    plain = [name for name in schema.names if name not in LONG_TEXT]
    options = {
        "compression": "zstd",
        "use_dictionary": False,
        "write_statistics": plain,
        "write_page_index": True,
    }
    with path.open_writer() as file, pq.ParquetWriter(file, schema, **options) as writer:
        sink = ParquetSink(writer)
        yield sink
        sink.flush()


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` in zstd row groups of about 16 MiB; equal tables give equal bytes."""
    with parquet_sink(path, table.schema) as sink:
        sink.write(table)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in `path`, or only some columns of it; InputError if it is no Parquet file or lacks one."""
    with _opened(path) as file:
        schema = _projected(path, file.schema_arrow, columns)
        try:
            return file.read(schema.names, use_threads=False)
        except OSError as error:
            _count_refused(path, error)
            every = [(0, file.metadata.num_rows)]
            return pa.Table.from_batches(_read_by_duckdb(path, schema, every, 0), schema)


def row_groups(path: Path) -> list[int]:
    """Uncompressed bytes of every row group."""
    with _opened(path) as file:
        return [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]


def read_batches(
    path: Path,
    columns: Sequence[str] | None = None,
    where: Any = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `path` in batches of about 1 MiB: some columns, rows that fit `where`, some row groups.

    Row groups whose statistics exclude `where` are not read. What pyarrow refuses is read by DuckDB.
    """
    with _opened(path) as file:
        schema = _projected(path, file.schema_arrow, columns)
        sizes = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        wanted = list(range(len(sizes)) if groups is None else groups)
        if where is not None:
            import pyarrow.dataset as ds  # 60 ms

            with path.open() as source:
                fragment = ds.ParquetFileFormat().make_fragment(source, row_groups=wanted)
                try:
                    scanner = fragment.scanner(columns=schema.names, filter=where, use_threads=False)
                except (pa.ArrowException, TypeError, ValueError) as error:
                    raise InputError(
                        f"{path} does not fit the filter {where} ({_first_line(error)}). Correct it."
                    ) from error
                yield from scanner.to_batches()
            return
        done = 0
        row_bytes = sum(group.total_byte_size for group in sizes) // max(1, file.metadata.num_rows)
        batch_rows = min(1 << 16, max(1, _BLOCK // max(1, row_bytes)))
        try:
            for batch in file.iter_batches(batch_rows, wanted, schema.names, use_threads=False):
                done += batch.num_rows
                yield batch
        except OSError as error:
            _count_refused(path, error)
            starts = [sum(group.num_rows for group in sizes[:i]) for i in wanted]
            spans = [(start, sizes[i].num_rows) for start, i in zip(starts, wanted, strict=True)]
            yield from _read_by_duckdb(path, schema, spans, done)


def _count_refused(path: Path, error: OSError) -> None:
    if "deserialize thrift" not in str(error):
        raise error
    logging.getLogger(__name__).warning("%s: %s; DuckDB reads it instead", path, _first_line(error))
    count("parquet_read_by_duckdb")


def _read_by_duckdb(
    path: Path, schema: pa.Schema, spans: list[tuple[int, int]], skip: int
) -> Iterator[pa.RecordBatch]:
    """The rows of these spans (first row, rows) without the first `skip` of them."""
    import duckdb  # only for pages that pyarrow refuses

    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy, duckdb.connect() as database:
        for chunk in path.chunks():
            copy.write(chunk)
        copy.flush()
        for start, rows in spans:
            left = max(0, rows - skip)
            skip, start = max(0, skip - rows), start + rows - left  # noqa: PLW2901 - the span without what is done
            query = f"SELECT {columns} FROM read_parquet(?) LIMIT {left} OFFSET {start}"  # noqa: S608 - quoted
            for batch in database.execute(query, [copy.name]).to_arrow_reader(1024):
                yield batch.cast(schema)


@contextmanager
def _opened(path: Path) -> Generator[pq.ParquetFile]:
    try:
        with path.open() as source, pq.ParquetFile(source) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path} can't be read as Parquet ({_first_line(error)}). It may be cut off: make it again."
        ) from error


def _projected(path: Path, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    missing = [name for name in columns or () if name not in schema.names]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r}, only {', '.join(schema.names)}. "
            "Give a file of the expected schema."
        )
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def to_table(rows: Sequence[dict[str, Any]], schema: pa.Schema | None, place: str) -> pa.Table:
    """Rows as a table: of exactly this schema, or of the inferred one. InputError names the column."""
    odd = next((row for row in rows if not isinstance(row, dict)), ...)
    if odd is not ...:
        raise InputError(f"{place}: {odd!r:.80} is no dict, which a table takes. Make it one in a map.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    extra = [name for name in names if schema is not None and name not in schema.names]
    if extra:
        raise InputError(
            f"{place}: column {extra[0]!r} is not in the schema. Drop it in a map, or add it to the schema."
        )
    fields = schema or [pa.field(name, pa.null()) for name in names]
    columns = [_column([row.get(field.name) for row in rows], field, schema, place) for field in fields]
    if schema is None:
        schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])
    return pa.Table.from_arrays(columns, schema=schema)


def conform(table: pa.Table, schema: pa.Schema, place: str) -> pa.Table:
    """The table with the columns of `schema`: what is missing or null is filled, all else must fit."""
    for field in table.schema:
        wanted = schema.field(field.name).type if field.name in schema.names else "absent"
        if field.type not in (wanted, pa.null()):
            raise InputError(
                f"{place}: column {field.name!r} is {field.type} here and {wanted} before or in the schema. "
                "Make it of one type in a map, or give write_parquet a schema that fits."
            )
    filled = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(filled, schema=schema)


def _column(values: list[Any], field: pa.Field, schema: pa.Schema | None, place: str) -> pa.Array:
    try:
        column = pa.array(values, None if schema is None else field.type)
    except (pa.ArrowException, OverflowError) as error:
        wanted = "of one type" if schema is None else str(field.type)
        raise InputError(
            f"{place}: column {field.name!r} is not {wanted} ({_first_line(error)}). "
            "Make it so in a map, or give the schema that fits."
        ) from error
    if column.null_count and not field.nullable:
        raise InputError(f"{place}: column {field.name!r} lacks a value, which its schema forbids. Fill it.")
    return column.cast(_LARGE.get(column.type, column.type)) if schema is None else column


def write_jsonl(path: Path, rows: Iterable[object]) -> int:
    """Write one JSON value a line, packed if the name ends in .zst or .gz; the number of lines."""
    return write_lines(path, map(json_line, rows))


def json_line(row: object) -> bytes:
    """A value as a line of JSON, its keys sorted."""
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS)


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write lines that end in a newline, packed as the name says; how many."""
    number = 0
    with path.open_writer() as file, _packed(path, file, pa.CompressedOutputStream) as packed:
        for number, line in enumerate(lines, 1):  # noqa: B007 - the number of lines
            packed.write(line)
    return number


def read_jsonl(path: Path, bad: Bad | None = None) -> Iterator[Any]:
    """The values of a .jsonl, .jsonl.zst or .jsonl.gz file, one by one; InputError names file and line.

    A file that was cut off is refused wherever the cut fell in it. With `bad`, broken lines go there instead.
    """
    number = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            try:
                if line.strip():
                    yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if bad is None:
                    raise
                bad(number, _first_line(error), line)
    except (orjson.JSONDecodeError, OSError) as error:
        number += not isinstance(error, orjson.JSONDecodeError)
        if bad is None:
            raise InputError(
                f"{path}, line {number}, can't be read ({_first_line(error)}). "
                "Mend or remove the line, or fetch the file again."
            ) from error
        bad(number, _first_line(error), b"")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open() as file, _packed(path, file, pa.CompressedInputStream) as stream:
        yield from lines_of(stream, LONGEST_LINE_BYTES)


def lines_of(stream: Any, longest_bytes: int) -> Iterator[bytes]:
    """The lines of a stream; OSError for a missing end, or one that would fill the memory, as bombs do."""
    parts: list[bytes] = []
    size = 0
    while block := stream.read(_BLOCK):
        first, *others = block.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > longest_bytes:
            raise OSError(f"a line is longer than {longest_bytes:,} bytes")
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            parts, size = [others[-1]], len(others[-1])
    if any(parts):
        yield b"".join(parts)


def _packed(path: Path, file: io.BufferedIOBase, stream: Callable[..., Any]) -> Any:
    codec = {"zst": "zstd", "gz": "gzip"}.get(path.name.rpartition(".")[2])
    return nullcontext(file) if codec is None else stream(file, codec)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
