"""Reading and writing one Parquet or JSON-lines file: published by rename, and bad ones refused by name."""

import io
import math
from collections.abc import Iterable, Iterator, Sequence

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lmlab.core.errors import InputError
from lmlab.storage import Path

ROW_GROUP_BYTES = 16 << 20
LONG_TEXT = ("text", "meta")  # min and max of these would fill page headers with megabytes and help nobody
LONGEST_LINE_BYTES = 1 << 30


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` in zstd row groups of about 16 MiB; equal tables give equal bytes."""
    groups = max(1, math.ceil(table.nbytes / ROW_GROUP_BYTES))
    plain = [name for name in table.column_names if name not in LONG_TEXT]
    with path.writer() as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=max(1, math.ceil(table.num_rows / groups)),
            use_dictionary=False,
            write_statistics=plain,
        )


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in `path`, or only some columns of it; InputError if it is no Parquet file or lacks one."""
    try:
        with pq.ParquetFile(path.local) as file:
            missing = [name for name in columns or () if name not in file.schema_arrow.names]
            if missing:
                raise InputError(
                    f"{path} has no column {missing[0]!r}, only {', '.join(file.schema_arrow.names)}. "
                    "Give a file of the expected schema."
                )
            return file.read(columns=None if columns is None else list(columns), use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path} can't be read as Parquet ({_first_line(error)}). It may be cut off: make it again."
        ) from error


def write_jsonl(path: Path, rows: Iterable[object]) -> int:
    """Write one JSON value a line, zstd-compressed; the number of lines."""
    count = 0
    packer = zstandard.ZstdCompressor(level=3)
    with path.writer() as temporary, temporary.open("wb") as file, packer.stream_writer(file) as packed:
        for row in rows:
            packed.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS))
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[object]:
    """The values of a .jsonl or .jsonl.zst file, one by one; InputError names the file and the line.

    A file that was cut off is refused wherever the cut fell, even between two lines.
    """
    number = 0
    try:
        with path.local.open("rb") as file:
            for line in _lines(file, path.name.endswith(".zst")):
                number += 1
                if line.strip():
                    yield orjson.loads(line)
    except (orjson.JSONDecodeError, zstandard.ZstdError, EOFError, OSError) as error:
        raise InputError(
            f"{path}, line {number if isinstance(error, orjson.JSONDecodeError) else number + 1}, can't be "
            f"read ({_first_line(error)}). Mend or remove the line, or fetch the file again."
        ) from error


def _lines(file: io.BufferedReader, is_packed: bool) -> Iterator[bytes]:
    if not is_packed:
        yield from file
        return
    rest = b""
    for block in _unpacked(file):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _unpacked(file: io.BufferedReader) -> Iterator[bytes]:
    """The content of any number of zstd frames; unlike the library's reader it minds a missing end."""
    frame = None
    while packed := file.read(1 << 20):
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(packed)
            packed = frame.unused_data
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the compressed data ends in the middle")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
