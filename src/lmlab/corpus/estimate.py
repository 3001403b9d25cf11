"""About how many tokens some files hold, from a sample weighted by bytes, and the table of what is known.

Windows are spread over the bytes of all files, so none counts for more than it holds (the first one, say).
Tokens per byte of each window give the total, and how they differ how far it may be off.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.core.config import decode
from lmlab.core.errors import InputError
from lmlab.core.units import format_count
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.storage import Path, read_json, write_json

Count = Callable[[list[str]], int]
"""Tokens of some texts together."""
WINDOWS, WINDOW_BYTES, WINDOW_ROWS = 48, 256 << 10, 50
_STEP, _MEASURED = 64 << 10, 32 << 20
"""So much of a packed file is inflated at least, to know how densely it is packed."""
_CODECS = {"gz": "gzip", "zst": "zstd"}


@dataclass(frozen=True)
class Estimate:
    """A count with its error."""

    tokens: int
    """The best guess."""
    error: int
    """Twice the standard error: the true count is within it 19 times in 20."""
    windows: int
    """Drawn and counted."""

    def __str__(self) -> str:
        return f"{format_count(self.tokens)} ± {format_count(self.error)} tokens ({self.windows} windows)"

    def check(self, exact: int) -> None:
        """InputError if an exact count is off by more than three times the error (1% is always allowed)."""
        if abs(exact - self.tokens) > max(3 * self.error, exact // 100):
            raise InputError(
                f"{exact} tokens were counted and {self} estimated, so one of them is of other files or of "
                "another tokenizer. Find out which before anything is weighted by it."
            )


def estimate_tokens(
    files: Sequence[Path], count: Count, field: str = "text", windows: int = WINDOWS, seed: int = 0
) -> Estimate:
    """Estimate the tokens of .jsonl(.gz, .zst), Parquet and text files by `count`, such as a tokenizer's.

    For files as they were fetched (`lmlab tokens estimate` tells the tokens of documents, by domain). `field`
    of a row holds its text. The same seed draws the same windows.
    """
    sizes = [file.size() for file in files]
    total, dice = sum(sizes), random.Random(seed)
    # Each somewhere in its own stretch of the bytes, which varies less than anywhere in all of them.
    offsets = [int((i + dice.random()) * total / windows) for i in range(windows)]
    rates: list[float] = []
    for file, size, end in zip(files, sizes, accumulate(sizes), strict=True):
        own = [offset - (end - size) for offset in offsets if end - size <= offset < end]
        read = _of_rows if file.name.endswith(".parquet") else _of_lines
        try:
            rates += [count(texts) / share for texts, share in (read(file, own, field) if own else ())]
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{file} can't be read ({str(error)[:200]}). Fetch it again.") from error
    if not rates:
        raise InputError(f"{len(files)} files hold no record, so there is nothing to estimate. Give others.")
    error = 2 * stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else fmean(rates)
    return Estimate(round(total * fmean(rates)), round(total * error), len(rates))


def _of_lines(file: Path, offsets: list[int], field: str) -> Iterator[tuple[list[str], float]]:
    """The texts of each window, and the bytes of the file that they stand for."""
    codec, is_rows = _CODECS.get(file.name.rpartition(".")[2]), ".json" in file.name
    found, inflated = [], 0
    with file.open() as packed:
        stream = pa.CompressedInputStream(packed, codec) if codec else packed
        for offset in offsets:
            if codec is None:
                stream.seek(offset)
            while codec and packed.tell() < offset and (block := stream.read(_STEP)):
                inflated += len(block)
            found.append((stream.read(WINDOW_BYTES), (inflated if codec else offset) == 0))
            inflated += len(found[-1][0])
        while codec and inflated < _MEASURED and (block := stream.read(_STEP)):
            inflated += len(block)
        density = inflated / packed.tell() if codec else 1.0
    for data, is_start in found:
        # The records that the window cuts in two say nothing; one that fills it stands for itself.
        lines = data.split(b"\n")[0 if is_start else 1 : -1] if is_rows else []
        texts = [_text(line, field) for line in lines] or [data.decode(errors="ignore")]
        if lines and not any(texts):
            raise InputError(f"{file} has no {field!r} in any of {len(texts)} rows that were looked at.")
        if data:
            yield texts, (sum(map(len, lines)) + len(lines) if lines else len(data)) / density


def _of_rows(file: Path, offsets: list[int], field: str) -> Iterator[tuple[list[str], float]]:
    with file.open() as opened, pq.ParquetFile(opened) as read:
        if field not in read.schema_arrow.names:
            raise InputError(f"{file} has no column {field!r}, only {', '.join(read.schema_arrow.names)}.")
        groups = [read.metadata.row_group(i) for i in range(read.num_row_groups)]
        packed = [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]
        ends = list(accumulate(packed))
        for offset in offsets:
            index = min(bisect_right(ends, offset * ends[-1] // file.size()), len(ends) - 1)
            column = read.read_row_group(index, columns=[field], use_threads=False).column(field)
            start = offset * 7919 % max(1, len(column) - WINDOW_ROWS)
            some = column.slice(start, WINDOW_ROWS)
            share = packed[index] / ends[-1] * file.size() * some.nbytes / max(1, column.nbytes)
            if share:
                yield [text or "" for text in some.to_pylist()], share


def _text(line: bytes, field: str) -> str:
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return ""
    return str(row.get(field) or "") if isinstance(row, dict) else str(row)


@dataclass(frozen=True)
class Counted:
    """What is known of one source."""

    source: str
    tokens: int
    how: str
    """Exactly by which tokenizer, or by an estimate, or by whom it was said."""
    date: str
    """YYYY-MM-DD"""


def write_counts(path: Path, rows: Sequence[Counted]) -> None:
    """Write a snapshot of the counts as a table (.parquet) or as JSON, ordered by source."""
    ordered = [asdict(row) for row in sorted(rows, key=lambda row: row.source)]
    if path.name.endswith(".parquet"):
        write_parquet(path, pa.Table.from_pylist(ordered))
    else:
        write_json(path, ordered)


def read_counts(path: Path) -> list[Counted]:
    """A snapshot again. Raises ConfigError if it is none."""
    rows = read_parquet(path).to_pylist() if path.name.endswith(".parquet") else read_json(path)
    return decode(list[Counted], rows, str(path))


def diff_counts(old: Sequence[Counted], new: Sequence[Counted]) -> list[tuple[str, int, int, str]]:
    """Sources whose count differs: name, tokens then and now (0 where it was not there), how it is known now.

    >>> diff_counts([Counted("a", 5, "said", "2026-01-01")], [Counted("a", 7, "counted", "2026-02-01")])
    [('a', 5, 7, 'counted')]
    """
    before, after = ({row.source: (row.tokens, row.how) for row in rows} for rows in (old, new))
    pairs = [(name, before.get(name, (0, "")), after.get(name, (0, "gone"))) for name in {**before, **after}]
    return sorted((name, was, now, how) for name, (was, _), (now, how) in pairs if was != now)
