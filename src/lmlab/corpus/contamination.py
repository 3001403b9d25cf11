"""Documents that repeat an eval or held-out text: found by runs of 13 words, paragraph by paragraph.

A run that many documents share (a licence header, the interface texts of a hundred translations), or many
records of an eval (its instructions), says nothing about one record and is ignored. What is flagged names the
eval and the record. An eval is a folder of documents, or of rows (Parquet, JSON lines) all of whose texts are
compared, one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lmlab.corpus.attributes import Parts, Say, mark
from lmlab.corpus.characters import Runs, distinct, paragraphs, word_runs
from lmlab.corpus.config import Decontamination
from lmlab.corpus.schema import DOCUMENTS, files_of, load_text, table_of
from lmlab.dataflow.files import read_jsonl, read_parquet, write_jsonl, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path

_FILTER_BITS = 22
SAMPLES, SHOWN = 100, 1_000
"""Flagged documents that are shown, and characters of the paragraph that was found."""
FLAGS = pa.schema(
    [("eval", pa.string()), ("record", pa.string()), ("overlap", pa.float32()), ("paragraph", pa.int32()),
     ("reason", pa.string())]
)  # fmt: skip


class Hits(NamedTuple):
    """Runs of one part's documents that stand in an eval."""

    row: np.ndarray
    """int64 row in the part."""
    paragraph: np.ndarray
    """int32 paragraph in the document."""
    gram: np.ndarray
    """int64 place among the known runs."""
    total: np.ndarray
    """int64 runs of that paragraph, hits or not."""


class Flag(NamedTuple):
    """A document that repeats an eval."""

    row: int
    record: int
    """Number of the record that it repeats most."""
    overlap: float
    runs: int
    paragraph: int
    """From 1."""


def mark_contaminated(
    documents: Path, evals: Mapping[str, Path], out: Path, settings: Decontamination, runner: Runner, say: Say
) -> pa.Table:
    """Say of every document which record of which eval it repeats, if any; the same of those that do, by row.

    evals/<name>.parquet gets every run that is looked for and its record, so that a flag can be checked.
    """
    grams, owner = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    records: list[tuple[str, str]] = []
    for name, folder in evals.items():
        own, record, labels = _known(files_of(folder), settings, runner)
        sidecar = {"gram": own, "record": pa.array(labels, pa.string()).take(pa.array(record))}
        write_parquet(out / "evals" / f"{name}.parquet", pa.table(sidecar))
        grams, owner = np.r_[grams, own], np.r_[owner, record + len(records)]
        records += [(name, label) for label in labels]
    known, index = np.unique(grams, return_index=True)
    owner = owner[index]
    parts = Parts({"": documents})
    file = out / ".work" / "known.npy"
    with file.open_writer() as opened:
        np.save(opened, known)
    find = partial(find_hits, known_file=file, settings=settings)
    said = partial(say, "comparing with evals")
    hits = runner.run(find, parts.paths, name="decontaminate", progress=said)
    (out / ".work").remove_tree()
    flags = flag(hits, owner, settings)
    rows = [found.row + int(start) for own, start in zip(flags, parts.starts, strict=False) for found in own]
    marks = _marks([found for own in flags for found in own], records)
    mark(parts, out, np.array(rows, int), marks, runner)
    marks = marks.add_column(0, "row", pa.array(rows, pa.int64()))
    write_jsonl(out / "flagged.jsonl", _samples(parts, marks.slice(0, SAMPLES)))
    return marks


def _samples(parts: Parts, marks: pa.Table) -> Iterator[dict[str, Any]]:
    """Flagged documents and what was found. Ids are random, so the first are a fair sample."""
    local = parts.split(marks.column("row").to_numpy())
    rows = iter(marks.drop_columns("row").to_pylist())
    for part, own in zip(parts.paths, local, strict=True):
        table = read_parquet(part, ["id", "source_id", "text"]).take(pa.array(own)) if len(own) else None
        for document in table.to_pylist() if table else ():
            row = next(rows)
            found = paragraphs(document.pop("text"))[row["paragraph"] - 1]
            yield {**document, **row, "text": found[:SHOWN]}


def _known(
    files: Sequence[Path], settings: Decontamination, runner: Runner
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The telling runs of an eval, the number of the record each stands in, and the names of the records."""
    found = runner.run(partial(record_runs, settings=settings), files, name="evals")
    labels = [label for _, _, names in found for label in names]
    first = np.cumsum([0, *(len(names) for _, _, names in found)])
    grams = np.concatenate([grams for grams, _, _ in found])
    record = np.concatenate([own + start for (_, own, _), start in zip(found, first[:-1], strict=True)])
    # Sorted by run, then record: a run's first record owns it, and repeats within one record count once.
    order = np.lexsort((record, grams))
    grams, record = grams[order], record[order]
    is_new = np.r_[True, grams[1:] != grams[:-1]][: len(grams)]
    is_other = is_new | np.r_[True, record[1:] != record[:-1]][: len(grams)]
    records = np.bincount(np.cumsum(is_new)[is_other] - 1)
    telling = records <= settings.shared
    return grams[is_new][telling], record[is_new][telling], labels


def record_runs(file: Path, settings: Decontamination) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The runs of an eval's records, the number of the record of each, and the names of all records."""
    if file.name.endswith(".parquet"):
        table = read_parquet(file)
        are_documents = set(DOCUMENTS.names) <= set(table.column_names)
        rows = (table.select(["id", "text"]) if are_documents else table).to_pylist()
    else:
        rows = list(read_jsonl(file))
    names = [_name(file, number, row) for number, row in enumerate(rows)]
    pairs = [(number, text) for number, row in enumerate(rows) for text in _texts(row)]
    record_of = np.array([number for number, _ in pairs], int)
    runs = _runs(pa.table({"text": pa.array([text for _, text in pairs], pa.large_string())}), settings)
    return runs.grams, record_of[runs.document], names


def _name(file: Path, number: int, row: Any) -> str:
    own = next((row[key] for key in ("id", "task_id") if key in row), None) if isinstance(row, dict) else None
    return f"{file.name.partition('.')[0]}:{number}" if own is None else str(own)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _runs(table: pa.Table, settings: Decontamination) -> Runs:
    rounds = list(word_runs(table, settings.words, settings.shortest, by_paragraph=True))
    empty = Runs(np.zeros(0, np.uint64), np.zeros(0, int), np.zeros(0, np.int32))
    return Runs(*(np.concatenate(columns) for columns in zip(*rounds, strict=True))) if rounds else empty


def find_hits(part: Path, known_file: Path, settings: Decontamination) -> Hits:
    """Where the documents of one part share runs with an eval."""
    with known_file.open() as file:
        known = np.load(file)
    shift = np.uint64(64 - _FILTER_BITS)
    seen = np.zeros(1 << _FILTER_BITS, bool)
    seen[known >> shift] = True
    rounds = word_runs(load_text(part), settings.words, settings.shortest, by_paragraph=True)
    found = [_hits(runs, known, seen[runs.grams >> shift]) for runs in rounds if len(known)]
    columns = zip(*found, strict=True) if found else [[np.zeros(0, int)]] * 4
    return Hits(*(np.concatenate(column) for column in columns))


def _hits(runs: Runs, known: np.ndarray, may_be_known: np.ndarray) -> Hits:
    # The filter lets one run in thirty through to the search, which is what costs.
    maybe = np.flatnonzero(may_be_known)
    place = np.searchsorted(known, runs.grams[maybe])
    is_hit = known[np.minimum(place, len(known) - 1)] == runs.grams[maybe]
    hit = maybe[is_hit]
    # Runs come in order, so those of one paragraph lie side by side.
    changes = np.flatnonzero(np.diff((runs.document << 32) | runs.paragraph)) + 1
    group = np.searchsorted(changes, hit, side="right")
    total = np.diff(np.r_[0, changes, len(runs.grams)])[group]
    return Hits(runs.document[hit], runs.paragraph[hit], place[is_hit], total)


def flag(parts: Sequence[Hits], owner: np.ndarray, settings: Decontamination) -> list[list[Flag]]:
    """The flagged documents of every part, by row; `owner` gives the record of each known run."""
    documents = np.zeros(len(owner), np.int64)
    for hits in parts:
        pairs = distinct((hits.row << 32) | hits.gram)
        documents += np.bincount(pairs & 0xFFFFFFFF, minlength=len(owner))
    is_telling = documents <= (np.inf if settings.common is None else settings.common)
    return [_flag_part(hits, is_telling, owner, settings) for hits in parts]


def _flag_part(
    hits: Hits, is_telling: np.ndarray, owner: np.ndarray, settings: Decontamination
) -> list[Flag]:
    kept = is_telling[hits.gram]
    row, paragraph, gram, total = (column[kept] for column in hits)
    flags: dict[int, Flag] = {}
    key = (row << 32) | paragraph
    order = np.argsort(key, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []:
        document, runs = int(row[group[0]]), int(total[group[0]])
        enough = min(settings.min_runs, runs)
        share = len(group) / runs
        if share < settings.overlap or len(distinct(gram[group])) < enough or document in flags:
            continue
        record = int(np.bincount(owner[gram[group]]).argmax())
        flags[document] = Flag(document, record, share, runs, int(paragraph[group[0]]) + 1)
    return list(flags.values())


def _marks(flags: Sequence[Flag], records: Sequence[tuple[str, str]]) -> pa.Table:
    rows = []
    for found in flags:
        name, record = records[found.record]
        place = f"{found.overlap:.2f} of the {found.runs} runs of paragraph {found.paragraph}"
        reason = f"repeats {name}: {place} stand in {record}"
        rows.append((name, record, found.overlap, found.paragraph, reason))
    return table_of(rows, FLAGS)
