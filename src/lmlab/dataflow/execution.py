"""Running a `Dataset`: a task for each unfinished shard of each stage, and what became of all of them."""

import inspect
import io
import pickle
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any, Literal

import msgspec
import pyarrow as pa
import xxhash

from lmlab.core.errors import ConfigError, InputError
from lmlab.core.resources import Resources
from lmlab.dataflow.counters import Counters
from lmlab.dataflow.files import conform, parquet_sink, read_batches
from lmlab.dataflow.plan import Dataset
from lmlab.dataflow.runner import Limits, Progress, Runner, open_runner
from lmlab.dataflow.sources import SUFFIX, FilePiece, RunPiece, Shard
from lmlab.dataflow.stages import Branch, Done, ShardInfo, Task, note, recorded, run_shard
from lmlab.dataflow.workers import Workers
from lmlab.storage import Path


@dataclass(frozen=True)
class Running:
    """How a data set is run."""

    on: str | None = None
    """"local", "ray" or "ray://HOST:PORT"; None = where `lmlab run --on` says."""
    workers: int = 2
    """Cores."""
    per_shard: Resources | None = None
    """What one task needs, unless its stage says otherwise; None = one core."""
    task_failures: int = 3
    """Errors of one shard before the run fails."""
    infra_failures: int = 20
    """Deaths of a worker under one shard before the run fails."""
    on_error: Literal["fail", "quarantine"] = "fail"
    """With quarantine a record that fails goes to `quarantine/` beside the output, and the rest goes on."""
    work: Path | str | None = None
    """Folder that all workers reach, for what is in between; None = beside the outputs."""
    runner: Runner | None = None
    """Workers that are there already, in place of `on` and `workers`."""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "quarantine"):
            raise ConfigError(f"on_error={self.on_error!r} is not known. Give 'fail' or 'quarantine'.")


@dataclass(frozen=True)
class Result:
    """What a run did, all shards counted, also those that an earlier run had finished."""

    counters: dict[str, float]
    outputs: list[Path]
    values: list[Any]
    """Records (or what `reduce` made of each shard) if nothing was written."""
    quarantined: int
    failed: tuple[str, ...]
    """Files that could not be read to their end, with `on_error="quarantine"`."""
    status: str
    """A Markdown table of the stages."""


def execute(dataset: Dataset, running: Running) -> Result:
    """Run all stages; what a killed run leaves is taken up by the next one."""
    limits = Limits(running.task_failures, running.infra_failures)
    with ExitStack() as stack:
        runner = running.runner or stack.enter_context(
            open_runner(running.workers, on=running.on, limits=limits)
        )
        job = _Job(dataset, running, runner, stack)
        done = [each for each in job.stage(dataset, "0") if each is not None]
        if dataset.sink.kind == "parquet" and dataset.sink.schema is None:
            done = _settled(done)
        counters = job.finish()
        status = runner.status()
    values = [each.value for each in done] if dataset.sink.kind == "fold" else []
    if dataset.sink.fold is list:
        values = [record for shard in values for record in shard]
    return Result(
        counters,
        [Path(each.output) for each in done if each.output],
        values,
        int(counters.get("quarantined", 0)),
        tuple(file for each in job.done for file in each.unread),
        status,
    )


class _Job:
    """One run of a data set: where its files lie, and what all its shards noted."""

    def __init__(self, dataset: Dataset, running: Running, runner: Runner, stack: ExitStack) -> None:
        self.running, self.runner = running, runner
        self.outputs = _outputs(dataset)
        plan = replace(dataset, sink=replace(dataset.sink, pattern=""), shared=_in_order(dataset.shared))
        self.identity = _identity((plan, self.outputs, running.on_error), runner)
        self.done: list[Done] = []
        self.skipped = self.stages = 0
        work = None if running.work is None else Path(running.work)
        folder = self.outputs[0].parent if self.outputs else work
        if folder is None:
            is_far = not isinstance(runner, Workers) and (dataset.before is not None or dataset.shared)
            if is_far or running.on_error == "quarantine":
                raise ConfigError(
                    "Nothing is written, so no folder is known that all workers reach. Give work=."
                )
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.folder = folder
        self.work = (work or folder) / f".work-{self.identity}"
        self.shared = {name: self.work / f"{name}.pickle" for name in dataset.shared}
        for name, path in self.shared.items():
            path.write_bytes(pickle.dumps(dataset.shared[name], pickle.HIGHEST_PROTOCOL))

    def stage(self, dataset: Dataset, place: str, is_needed: bool = True) -> list[Done | None]:
        """Do what is not yet done of one stage, and of those before it what that needs."""
        found = _recorded(self._tasks(dataset, place))
        rest = [index for index, done in enumerate(found) if done is None]
        self.skipped += len(found) - len(rest) if place == "0" else 0
        is_needed = is_needed and bool(rest)
        resolved = self._resolved(dataset, place, is_needed)
        self.stages += 1
        kinds = [op.kind for op in dataset.ops] or ["read"]
        name = f"{self.stages} {', '.join(kinds)} to {dataset.sink.kind}"
        for index, done in enumerate(found):
            if done is not None:
                self.runner.counters.settle(name, index, done.tally)
        if is_needed:
            tasks = self._tasks(resolved, place)
            needs = dataset.resources or self.running.per_shard
            made = self.runner.run(
                run_shard, [tasks[index] for index in rest],
                name=name, progress=self.running.progress, resources=needs, threads=dataset.threads,
            )  # fmt: skip
            for index, done in zip(rest, made, strict=True):
                found[index] = done
        self.done += [done for done in found if done is not None]
        return found

    def finish(self) -> dict[str, float]:
        """Remove what was in between; the counters of all stages and shards."""
        _sweep(self.outputs)
        counters = Counters()
        for index, done in enumerate(self.done):
            counters.settle("", index, done.tally)
        summary = self.folder / ".done" / f"{self.identity}.json"
        if self.outputs and self.skipped == len(self.outputs) and (kept := summary.read_if_present()):
            return {**msgspec.json.decode(kept), "skipped": self.skipped}
        if self.outputs:
            summary.write_bytes(msgspec.json.encode(dict(counters)))
        self.work.remove_tree()
        return {**counters, "skipped": self.skipped}

    def _resolved(self, dataset: Dataset, place: str, is_needed: bool) -> Dataset:
        """The stage with the shards that it reads, also those of the right sides of joins."""
        ops = []
        for number, op in enumerate(dataset.ops):
            if op.kind == "join":
                right = self._resolved(op.setting.right, f"{place}j{number}", is_needed)
                op = replace(op, setting=replace(op.setting, right=right))  # noqa: PLW2901 - as tasks need it
            ops.append(op)
        shards = dataset.shards
        if dataset.before is not None:
            mapped = [done for done in self.stage(dataset.before, f"{place}b", is_needed) if done is not None]
            runs = [tuple(run for done in mapped for run in done.runs.get(i, ())) for i in range(len(shards))]
            shards = tuple((RunPiece(each, self.work / f"{place}-{i}"),) for i, each in enumerate(runs))
        return replace(dataset, shards=shards, ops=tuple(ops))

    def _tasks(self, dataset: Dataset, place: str) -> list[Task]:
        total, sink = len(dataset.shards), replace(dataset.sink, pattern="")
        outs: Sequence[Path | None] = [None] * total if sink.kind == "fold" else self.outputs
        if sink.kind == "scatter":
            outs = [self.work / f"{place}-{i:05d}.arrow" for i in range(total)]
        tasks = []
        for index, (shard, out) in enumerate(zip(dataset.shards, outs, strict=True)):
            info = ShardInfo(index, total, _shard_name(shard, index))
            aside = self.folder / "quarantine" / f"{place}-{index:05d}.jsonl"
            aside = aside if self.running.on_error == "quarantine" else None
            tasks.append(Task(info, _branch(dataset, index), sink, out, aside, self.identity, self.shared))
        return tasks


def _branch(dataset: Dataset, index: int) -> Branch:
    """What one shard needs of a data set, and of those that are joined to it."""
    ops = [
        replace(op, setting=replace(op.setting, right=_branch(op.setting.right, index)))
        if op.kind == "join"
        else op
        for op in dataset.ops
    ]
    return Branch(dataset.shards[index], dataset.reading, tuple(ops))


def _shard_name(shard: Shard, index: int) -> str:
    files = [piece.path.name for piece in shard if isinstance(piece, FilePiece)]
    return ", ".join(files[:3]) if files else f"shard {index}"


def _outputs(dataset: Dataset) -> list[Path]:
    """Where each shard of the last stage goes; all different, and none of them an input."""
    if dataset.sink.kind == "fold":
        return []
    total, pattern = len(dataset.shards), dataset.sink.pattern
    outputs = []
    for index, shard in enumerate(dataset.shards):
        names = [re.sub(SUFFIX, "", piece.path.name) for piece in shard if isinstance(piece, FilePiece)]
        given = {"shard": index, "total": total, **({"basename": names[0]} if names else {})}
        try:
            outputs.append(
                Path(pattern.format(**given) if isinstance(pattern, str) else pattern(index, total))
            )
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"{pattern}: {error} is not known. Use {{shard}} and {{total}}; after files {{basename}} too."
            ) from error
    twice = [path for path, times in Counter(outputs).items() if times > 1]
    if twice:
        raise ConfigError(
            f"{pattern}: {total} shards would write {twice[0]}, one over the other. Put {{shard:05d}} in."
        )
    inputs = {piece.path for shard in dataset.shards for piece in shard if isinstance(piece, FilePiece)}
    if inputs & set(outputs):
        raise ConfigError(
            f"{min(inputs & set(outputs))} is read and would be written over. Write to another folder."
        )
    return outputs


def _sweep(outputs: list[Path]) -> None:
    """Remove what killed writers of these files left."""
    names = {path.name for path in outputs}
    for folder in {path.parent.local for path in outputs if path.is_local}:
        for draft in folder.glob(".*.unfinished"):
            if draft.name[1:].rsplit(".", 2)[0] in names:
                draft.unlink(missing_ok=True)


def _recorded(tasks: list[Task]) -> list[Done | None]:
    """What shards noted that are finished; one listing a folder, and only notes that exist are read."""
    folders = {task.out.parent for task in tasks if task.out is not None}
    noted = {note.name for folder in folders for note in (folder / ".done").list()}
    if not noted:
        return [None] * len(tasks)
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(recorded, tasks))


def _settled(done: list[Done]) -> list[Done]:
    """Shards whose inferred schemas differ in nulls and missing columns get the schema of all."""
    schemas = [pa.ipc.read_schema(pa.py_buffer(each.schema)) for each in done]
    common = pa.schema([])
    for each, schema in zip(done, schemas, strict=True):
        try:
            common = pa.unify_schemas([common, schema])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(
                f"{each.output} differs from the files before it ({error}), so they are no one table. "
                "Make the column of one type in a map, or give write_parquet a schema."
            ) from error
    return [
        each if schema == common else _rewritten(each, common)
        for each, schema in zip(done, schemas, strict=True)
    ]


def _rewritten(done: Done, schema: pa.Schema) -> Done:
    path = Path(str(done.output))
    with parquet_sink(path, schema) as sink:
        for batch in read_batches(path):
            sink.write(conform(pa.Table.from_batches([batch]), schema, str(path)))
    done = replace(done, size_bytes=path.size(), schema=schema.serialize().to_pybytes())
    note(done)
    return done


def _in_order(shared: dict[str, Any]) -> dict[str, Any]:
    """Sets as lists: they have another order in each process."""
    return {
        name: sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        for name, value in shared.items()
    }


def _identity(plan: object, runner: Runner) -> str:
    """Names a plan by its inputs, operations and the code of their functions."""
    file = io.BytesIO()
    try:
        _Namer(file, runner.count == 1 and isinstance(runner, Workers)).dump(plan)
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        raise ConfigError(f"The data set can't be sent to a worker ({error}). Give plain values.") from error
    return xxhash.xxh3_64_hexdigest(file.getvalue())


class _Namer(pickle.Pickler):
    """Pickles functions and classes by name and code; what other processes can't find is refused."""

    def __init__(self, file: io.BytesIO, is_here: bool) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.is_here, self.fast = is_here, True

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, FunctionType | type) or value.__module__ in ("builtins", "copyreg"):
            return NotImplemented
        name = f"{value.__module__}.{value.__qualname__}"
        if "<" in value.__qualname__:
            raise ConfigError(f"{name} can't be sent to a worker. Define it at the top level of a module.")
        if value.__module__ == "__main__" and not self.is_here:
            raise ConfigError(
                f"{value.__qualname__} stands in the running script, where no other process can find it. "
                "Move it into a module, or give workers=1."
            )
        functions = (
            [value, inspect.unwrap(value)] if isinstance(value, FunctionType) else vars(value).values()
        )
        codes = [_code(each.__code__) for each in functions if isinstance(each, FunctionType)]
        return tuple, ((name, *codes, getattr(value, "__defaults__", None)),)


def _code(code: CodeType) -> str:
    return f"{code.co_code.hex()}{code.co_names}{[_constant(each) for each in code.co_consts]}"


def _constant(value: Any) -> str:
    """A text for a constant; those of sets have another order in each process."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple | frozenset):
        texts = [_constant(each) for each in value]
        return f"{type(value).__name__}{sorted(texts) if isinstance(value, frozenset) else texts}"
    return repr(value)
