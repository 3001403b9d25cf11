"""Curation as a plan of per-part tasks: normalize, exact, fuzzy, holdout, decontaminate, write.

Texts are read and written by the workers, part by part; this process holds ids, sizes, band keys and
decisions. Every document ends in exactly one of train/, holdout/ and rejected/<stage>/.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.core.units import format_seconds
from lmlab.corpus import decontaminate, fuzzy
from lmlab.corpus.config import Decontamination, Fuzzy, Holdout
from lmlab.corpus.heldout import held_out
from lmlab.corpus.normalize import CleanTask, Normalized, UniqueTask, clean_part, unique_part
from lmlab.corpus.schema import (
    DOCUMENTS,
    PART_BYTES,
    REJECTED,
    Stage,
    earlier_stages,
    kind_of,
    part_name,
    parts_of,
    write_stages,
)
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path

TRAIN, HOLDOUT, FUZZY, DECONTAMINATE = range(4)
FOLDERS = ("train", "holdout", "rejected/fuzzy", "rejected/decontaminate")
Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides which documents are kept."""

    fuzzy: Fuzzy
    holdout: Holdout
    decontamination: Decontamination


@dataclass(frozen=True)
class WriteTask:
    """One part, and where each of its rows goes."""

    part: Path
    out: Path
    fate: np.ndarray
    """int8 per row, an index of FOLDERS."""
    reasons: dict[int, str]
    """Why a row is rejected."""


class Rows:
    """The rows of all normalized parts as one table, without their texts."""

    def __init__(self, parts: Sequence[Normalized]) -> None:
        self.starts = np.cumsum([0, *(len(part.ids) for part in parts)])
        self.ids = [value for part in parts for value in part.ids]
        self.domains = np.array([value for part in parts for value in part.domains], dtype=str)
        self.sizes = np.concatenate([part.sizes for part in parts])
        self.bands = np.concatenate([part.bands for part in parts])
        self.fate = np.full(len(self.ids), TRAIN, np.int8)
        self.reasons: dict[int, str] = {}

    def by_part(self, rows: np.ndarray) -> list[np.ndarray]:
        """Sorted row numbers, split by part and counted from its start."""
        ends = np.searchsorted(rows, self.starts)
        pairs = zip(ends[:-1], ends[1:], self.starts[:-1], strict=True)
        return [rows[start:end] - first for start, end, first in pairs]

    def reject(self, row: int, fate: int, reason: str) -> None:
        """Send a row to a rejected folder."""
        self.fate[row] = fate
        self.reasons[row] = reason


def curate_all(
    documents: Path, out: Path, recipe: Recipe, workers: Runner, say: Say
) -> list[dict[str, Any]]:
    """Curate the parts in `documents` into folders below `out`; documents and bytes of every domain.

    Also writes stages.json. What it cost is said, not written: equal inputs must give equal files.
    """
    work = out / ".work"
    started_s = time.process_time()
    rows, stages = _normalized(documents, out, work, recipe.fuzzy, workers, say)
    parts = [work / part_name(i, len(rows.starts) - 1) for i in range(len(rows.starts) - 1)]
    stages.append(_drop_near_duplicates(rows, parts, recipe.fuzzy, workers, say))
    stages.append(_hold_out(rows, recipe.holdout))
    stages.append(_decontaminate(rows, parts, work, recipe.decontamination, workers, say))
    _write(rows, parts, out, workers, say)
    work.remove_tree()
    domains = _domains(rows)
    write_stages(out, [*earlier_stages(documents), *(stage.row() for stage in stages)], domains)
    cpu_s = {**workers.cpu_s, "this process": time.process_time() - started_s}
    said = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in cpu_s.items())
    rate = stages[0].bytes_in / 1e6 / sum(cpu_s.values())
    say(f"{rate:.1f} MB of text per CPU-second ({said})", len(parts), len(parts))
    return domains


def _normalized(
    documents: Path, out: Path, work: Path, settings: Fuzzy, workers: Runner, say: Say
) -> tuple[Rows, list[Stage]]:
    raw = parts_of(documents)
    count = max(1, math.ceil(sum(path.size() for path in raw) * _PACKED / PART_BYTES))
    scattered = tuple(work / f"scattered-{i:05d}.arrow" for i in range(len(raw)))
    workers.run(
        clean_part,
        [CleanTask(part, count, target) for part, target in zip(raw, scattered, strict=True)],
        name="normalize",
        progress=lambda done, total: say("normalizing", done, total),
    )
    parts = workers.run(
        unique_part,
        [UniqueTask(scattered, i, count, work, out, settings) for i in range(count)],
        name="exact+minhash",
        progress=lambda done, total: say("hashing", done, total),
    )
    stages = [Stage("normalize"), Stage("language"), Stage("exact")]
    for part in parts:
        for stage, counted in zip(stages, part.stages, strict=True):
            stage.merge(counted)
    if stages[-1].documents_out == 0:
        raise InputError(
            f"{documents} holds no text: {stages[0].documents_in} documents, all blank. Extract other "
            "sources."
        )
    return Rows(parts), stages


_PACKED = 4
"""Text is about four times its Parquet file: sizes the parts by what is known before reading."""


def _drop_near_duplicates(
    rows: Rows, parts: list[Path], settings: Fuzzy, workers: Runner, say: Say
) -> Stage:
    stage = Stage("fuzzy")
    groups = fuzzy.clusters(rows.bands)
    if groups:
        wanted = np.sort(np.concatenate(groups))
        local = rows.by_part(wanted)
        tasks = [
            fuzzy.GramsTask(part, chosen, settings.words) for part, chosen in zip(parts, local, strict=True)
        ]
        found = workers.run(
            fuzzy.word_grams,
            tasks,
            name="verify",
            progress=lambda done, total: say("comparing near duplicates", done, total),
        )
        grams = dict(zip(wanted.tolist(), (gram for part in found for gram in part), strict=True))
        for group in groups:
            for duplicate in fuzzy.verify(group.tolist(), grams, settings.containment):
                share, kept = duplicate.containment, rows.ids[duplicate.kept]
                rows.reject(duplicate.row, FUZZY, f"near duplicate: {share:.2f} of it is in {kept}")
    return _count(stage, rows, rows.fate >= 0, rows.fate != FUZZY)


def _hold_out(rows: Rows, settings: Holdout) -> Stage:
    unique = np.flatnonzero(rows.fate == TRAIN)
    ids = [rows.ids[row] for row in unique]
    chosen = held_out(ids, rows.domains[unique].tolist(), rows.sizes[unique], settings)
    rows.fate[unique[chosen]] = HOLDOUT
    stage = _count(Stage("holdout"), rows, rows.fate != FUZZY, rows.fate == TRAIN)
    stage.dropped["held out"] = int(chosen.sum())
    return stage


def _decontaminate(
    rows: Rows, parts: list[Path], work: Path, settings: Decontamination, workers: Runner, say: Say
) -> Stage:
    def tasks(fate: int, known: Path | None) -> list[decontaminate.RunsTask]:
        local = rows.by_part(np.flatnonzero(rows.fate == fate))
        return [
            decontaminate.RunsTask(part, chosen, settings, known)
            for part, chosen in zip(parts, local, strict=True)
        ]

    held_rows = np.flatnonzero(rows.fate == HOLDOUT)
    found = workers.run(decontaminate.heldout_runs, tasks(HOLDOUT, None), name="decontaminate")
    first = np.cumsum([0, *(len(chosen) for chosen in rows.by_part(held_rows))])
    owners = np.concatenate([held_rows[runs.document + first[i]] for i, runs in enumerate(found)])
    known, index = np.unique(np.concatenate([runs.grams for runs in found]), return_index=True)
    if len(known):
        file = work / "heldout.npy"
        with file.writer() as temporary, temporary.open("wb") as opened:
            np.save(opened, known)
        hits = workers.run(
            decontaminate.find_hits,
            tasks(TRAIN, file),
            name="decontaminate",
            progress=lambda done, total: say("comparing with held-out text", done, total),
        )
        for part, flags in enumerate(decontaminate.flag(hits, owners[index], settings)):
            for flag in flags:
                reason = f"repeats held-out text: {flag.reason} stand in {rows.ids[flag.heldout]}"
                rows.reject(int(rows.starts[part]) + flag.row, DECONTAMINATE, reason)
    is_candidate = (rows.fate == TRAIN) | (rows.fate == DECONTAMINATE)
    return _count(Stage("decontaminate"), rows, is_candidate, rows.fate == TRAIN)


def _count(stage: Stage, rows: Rows, before: np.ndarray, after: np.ndarray) -> Stage:
    stage.take(rows.sizes[before], after[before])
    gone = np.flatnonzero(before & ~after)
    stage.dropped.update(kind_of(rows.reasons[row]) for row in gone.tolist() if row in rows.reasons)
    return stage


def _write(rows: Rows, parts: list[Path], out: Path, workers: Runner, say: Say) -> None:
    tasks = []
    for i, part in enumerate(parts):
        start, end = int(rows.starts[i]), int(rows.starts[i + 1])
        reasons = {row - start: rows.reasons[row] for row in range(start, end) if row in rows.reasons}
        tasks.append(WriteTask(part, out, rows.fate[start:end], reasons))
    workers.run(write_part, tasks, name="write", progress=lambda done, total: say("writing", done, total))


def write_part(task: WriteTask) -> None:
    """Write the rows of one part where they belong; train/ and holdout/ get every part, even an empty one."""
    table = read_parquet(task.part, DOCUMENTS.names)
    for fate, folder in enumerate(FOLDERS):
        chosen = np.flatnonzero(task.fate == fate)
        selected = table.take(pa.array(chosen)).combine_chunks()
        if fate in (TRAIN, HOLDOUT):
            write_parquet(task.out / folder / task.part.name, selected.cast(DOCUMENTS))
        elif len(chosen):
            reasons = pa.array([task.reasons[row] for row in chosen.tolist()], pa.string())
            rejected = selected.append_column(REJECTED.field("reason"), reasons)
            write_parquet(task.out / folder / task.part.name, rejected.cast(REJECTED))


def _domains(rows: Rows) -> list[dict[str, Any]]:
    table = []
    for domain in sorted(set(rows.domains.tolist())):
        entry: dict[str, Any] = {"domain": domain}
        for name, fate in (("train", TRAIN), ("holdout", HOLDOUT)):
            chosen = (rows.domains == domain) & (rows.fate == fate)
            entry[f"{name}_documents"] = int(chosen.sum())
            entry[f"{name}_bytes"] = int(rows.sizes[chosen].sum())
        table.append(entry)
    return table
