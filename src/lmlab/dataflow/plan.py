"""`Dataset`: what to do with many records, said first and done by `run`, one task for each shard.

What stands between a source, a `group_by` and an end is done in one go. Only `group_by` and `dedup` move
data; else a shard keeps its number from the file read to the file written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from lmlab.core.errors import ConfigError
from lmlab.core.resources import Resources
from lmlab.dataflow.joining import Join, both
from lmlab.dataflow.shuffle import Order, Shuffle
from lmlab.dataflow.sources import FilePiece, Format, ListPiece, Reading, Shard, list_shards, regroup
from lmlab.dataflow.stages import Op, ShardInfo, Sink
from lmlab.storage import Path

if TYPE_CHECKING:
    import pyarrow as pa

    from lmlab.dataflow.execution import Result

_ALL, _COLLECT = Reading(), Sink("fold")
Pattern = str | Path | Callable[[int, int], str]


def first(_key: Any, records: Iterator[Any]) -> Any:
    """A reducer that keeps the first record of a key."""
    return next(records)


@dataclass(frozen=True)
class Dataset:
    """Records in shards, and what is done with them. Functions must stand at the top level of a module.

    >>> len(Dataset.from_list([{"n": 1}, {"n": 2}], shards=2).run(workers=1).values)
    2
    """

    shards: tuple[Shard, ...]
    reading: Reading = _ALL
    ops: tuple[Op, ...] = ()
    sink: Sink = _COLLECT
    before: "Dataset | None" = None
    """The stage that scatters what this one merges."""
    resources: Resources | None = None
    """Of one task of this stage; None = `per_shard` of the run."""
    threads: int = 1
    shared: dict[str, Any] = field(default_factory=dict)

    # -- sources ----------------------------------------------------------------------------------

    @classmethod
    def files(
        cls,
        pattern: str | Path,
        *,
        columns: Sequence[str] | None = None,
        file_format: Format | None = None,
        shard_bytes: int | None = None,
        path_column: str | None = None,
        allow_empty: bool = False,
    ) -> "Dataset":
        """The records of files: `raw/{a,b}/**/*.jsonl.zst`, listed now, a shard each, in the order of names.

        Parquet above `shard_bytes` is cut between row groups, of which a large one stays one shard.
        `path_column` adds the path of the file.
        """
        reading = Reading(None if columns is None else tuple(columns), None, path_column)
        return cls(list_shards(pattern, file_format, shard_bytes, allow_empty), reading)

    @classmethod
    def from_list(cls, records: Sequence[Any], shards: int | None = None) -> "Dataset":
        """Records given by hand, a shard each or in so many shards."""
        each = tuple((ListPiece((record,)),) for record in records)
        return cls(each if shards is None else regroup(each, _positive("shards", shards)))

    @classmethod
    def from_iterable(cls, records: Iterable[Any], shards: int | None = None) -> "Dataset":
        """The same from anything that can be iterated; it is read now."""
        return cls.from_list(list(records), shards)

    # -- record by record -------------------------------------------------------------------------

    def map(self, function: Callable[[Any], Any]) -> "Dataset":
        """A record for each record."""
        return self._then("map", function)

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> "Dataset":
        """Any number of records for each record."""
        return self._then("flat_map", function)

    def filter(self, condition: Any) -> "Dataset":
        """Records that fit: a function, or an expression of pyarrow (which the reader takes) or polars."""
        if callable(condition) and type(condition).__module__.partition(".")[0] not in ("pyarrow", "polars"):
            return self._then("filter", condition)
        is_taken = self.reading.where is None and self._reaches_reader()
        if is_taken and type(condition).__module__.startswith("pyarrow"):
            return replace(self, reading=replace(self.reading, where=condition))
        return self._then("where", condition)

    def select(self, *columns: str) -> "Dataset":
        """Only these columns; straight after `files`, only they are read."""
        if self.reading.columns is None and self._reaches_reader():
            return replace(self, reading=replace(self.reading, columns=columns))
        return self._then("select", columns)

    def map_batches(self, function: Callable[["pa.Table"], "pa.Table"]) -> "Dataset":
        """A table for each table of some megabytes; from Parquet to Parquet no record is ever made."""
        return self._then("map_batches", function)

    # -- shard by shard ---------------------------------------------------------------------------

    def map_shard(self, function: Callable[[Iterator[Any], ShardInfo], Iterable[Any]]) -> "Dataset":
        """What a function makes of all records of a shard."""
        return self._then("map_shard", function)

    def window(self, size: int) -> "Dataset":
        """Lists of `size` neighbours; the last one of a shard may be shorter."""
        return self._then("window", None, _positive("window", size))

    def take_per_shard(self, count: int) -> "Dataset":
        """The first records of each shard; no more are read."""
        return self._then("take", None, _positive("take_per_shard", count))

    def reshard(self, count: int) -> "Dataset":
        """The same files or lists over `count` shards; straight after the source, and nothing is moved."""
        if self.ops or self.before is not None:
            raise ConfigError("reshard stands straight after the source; after a group_by give it shards=.")
        pieces = sum(map(len, self.shards))
        if not 1 <= count <= max(1, pieces):
            raise ConfigError(f"reshard({count}): there are {pieces} pieces to share. Give 1 … {pieces}.")
        return replace(self, shards=regroup(self.shards, count))

    # -- across shards ----------------------------------------------------------------------------

    def group_by(
        self,
        key: str | Order,
        reduce: Callable[[Any, Iterator[Any]], Any],
        *,
        sort: str | Order | None = None,
        combine: Callable[[Any, Iterator[Any]], Any] | None = None,
        shards: int | None = None,
    ) -> "Dataset":
        """`reduce(key, records)` for each key: a record, or an iterator of any number of them.

        The records come one by one, ordered by `sort`, and need not fit in memory. The hash of a key decides
        its shard, in which keys are in order. `combine`, of the same form, shrinks what is moved.
        """
        targets = _positive("shards", shards if shards is not None else max(1, len(self.shards)))
        scattered = replace(self, sink=Sink("scatter", shuffle=Shuffle(key, sort, combine, targets)))
        return Dataset(
            ((),) * targets, ops=(Op("reduce", reduce, key),), before=scattered, shared=self.shared
        )

    def dedup(
        self, key: str | Order, *, sort: str | Order | None = None, shards: int | None = None
    ) -> "Dataset":
        """One record of each key: the smallest by `sort`, or the first as read."""
        return self.group_by(key, first, sort=sort, combine=first, shards=shards)

    def sorted_merge_join(
        self,
        right: "Dataset",
        key: str | Order,
        *,
        how: Literal["inner", "left"] = "inner",
        combine: Callable[[Any, Any], Any] = both,
    ) -> "Dataset":
        """Pairs of equal keys of two data sets in equal shards that are sorted by the key; moves nothing.

        `combine(left, right)`, where `right` may be None if `how` is "left".
        """
        if how not in ("inner", "left"):
            raise ConfigError(f"how={how!r} is not known. Give 'inner' or 'left'.")
        if len(self.shards) != len(right.shards):
            raise ConfigError(
                f"sorted_merge_join of {len(self.shards)} and {len(right.shards)} shards: keys would miss. "
                "Write both with as many shards."
            )
        for one, other in zip(map(_basenames, self.shards), map(_basenames, right.shards), strict=True):
            if one and other and one != other:
                raise ConfigError(
                    f"sorted_merge_join of {one[0]} and {other[0]}: shards of other names hold other keys. "
                    "Give folders that are co-partitioned."
                )
        joined = self._then("join", combine, Join(key, how, right))
        return replace(joined, shared={**right.shared, **self.shared})

    # -- settings and ends ------------------------------------------------------------------------

    def on(self, resources: Resources, threads: int = 1) -> "Dataset":
        """What a task of this stage (up to the next group_by) needs; a worker runs `threads` at once."""
        return replace(self, resources=resources, threads=threads)

    def share(self, **values: Any) -> "Dataset":
        """Data for all functions, sent once and loaded once a worker: `shared("name")` gives it."""
        return replace(self, shared={**self.shared, **values})

    def write_parquet(self, pattern: Pattern, schema: "pa.Schema | None" = None) -> "Dataset":
        """One Parquet file a shard, named by `{shard}`, `{total}`, `{basename}` or a function of two numbers.

        `schema` is strict. Without it, it is inferred, and shards that differ in more than nulls are refused.
        """
        return replace(self, sink=Sink("parquet", _written(pattern), schema))

    def write_jsonl(self, pattern: Pattern) -> "Dataset":
        """One file of JSON lines a shard, packed if the name ends in .zst or .gz."""
        return replace(self, sink=Sink("jsonl", _written(pattern)))

    def reduce(
        self, local: Callable[[Iterator[Any]], Any], combine: Callable[[list[Any]], Any], **options: Any
    ) -> Any:
        """`combine` of what `local` makes of each shard; runs, with the options of `run`."""
        return combine(replace(self, sink=Sink("fold", fold=local)).run(**options).values)

    def count(self, **options: Any) -> int:
        """How many records there are; runs."""
        return self.reduce(_length, sum, **options)

    def run(self, **options: Any) -> "Result":
        """Do it, with the options of `Running`: on, workers, per_shard, task_failures, on_error and others.

        What a killed run finished is not done again. Without a writer the records are the `values`.
        """
        from lmlab.dataflow.execution import Running, execute

        return execute(self, Running(**options))

    def _then(self, kind: str, function: Any, setting: Any = None) -> "Dataset":
        return replace(self, ops=(*self.ops, Op(kind, function, setting)))

    def _reaches_reader(self) -> bool:
        """Whether the reader of Parquet can do what comes next."""
        pieces = [piece for shard in self.shards for piece in shard]
        is_parquet = all(isinstance(p, FilePiece) and p.format == "parquet" for p in pieces)
        return bool(pieces) and is_parquet and not self.ops and self.reading.path_column is None


def _length(records: Iterator[Any]) -> int:
    return sum(1 for _ in records)


def _basenames(shard: Shard) -> list[str]:
    return [piece.path.name.partition(".")[0] for piece in shard if isinstance(piece, FilePiece)]


def _positive(name: str, number: int) -> int:
    if number < 1:
        raise ConfigError(f"{name}={number}: nothing would come out. Give 1 or more.")
    return number


def _written(pattern: Pattern) -> str | Callable[[int, int], str]:
    return str(pattern) if isinstance(pattern, str | Path) else pattern
