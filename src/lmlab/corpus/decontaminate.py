"""Training documents that repeat held-out text: found by runs of 13 words, paragraph by paragraph.

A run that many training documents share (a licence header, the interface texts of a hundred translations)
says nothing about one held-out document and is ignored. What is flagged names the held-out document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lmlab.corpus import kernels
from lmlab.corpus.characters import classes
from lmlab.corpus.config import Decontamination
from lmlab.corpus.schema import load_text, text_buffers
from lmlab.storage import Path

_FILTER_BITS = 22


class Runs(NamedTuple):
    """Word runs of some documents, in order."""

    grams: np.ndarray
    """uint64 hash of each run."""
    document: np.ndarray
    """int64 place of its document among those asked for."""
    paragraph: np.ndarray
    """int32 number of its paragraph in the document."""


class Hits(NamedTuple):
    """Runs of one part's training documents that stand in held-out text."""

    row: np.ndarray
    """int64 row in the part."""
    paragraph: np.ndarray
    """int32 paragraph in the document."""
    gram: np.ndarray
    """int64 place among the held-out runs."""
    total: np.ndarray
    """int64 runs of that paragraph, hits or not."""


class Flag(NamedTuple):
    """A training document that repeats held-out text."""

    row: int
    heldout: int
    reason: str


@dataclass(frozen=True)
class RunsTask:
    """Some rows of one part, and the file of held-out runs to look for; None gets the runs themselves."""

    part: Path
    rows: np.ndarray
    settings: Decontamination
    known: Path | None = None


def heldout_runs(task: RunsTask) -> Runs:
    """The word runs of some rows of one part."""
    table = load_text(task.part).take(pa.array(task.rows))
    data, offsets = text_buffers(table)
    size = int(offsets[-1] - offsets[0]) // 2 + len(offsets)
    grams, paragraphs = np.empty(size, np.uint64), np.empty(size, np.int32)
    settings = task.settings
    ends = kernels.word_grams(
        data, offsets, classes(), settings.words, settings.shortest, True, grams, paragraphs
    )
    counts = np.diff(ends, prepend=0)
    used = int(counts.sum())
    return Runs(grams[:used], np.repeat(np.arange(len(counts)), counts), paragraphs[:used])


def find_hits(task: RunsTask) -> Hits:
    """Where training documents of one part share runs with held-out text."""
    assert task.known is not None
    known = np.load(task.known.local)
    runs = heldout_runs(task)
    shift = np.uint64(64 - _FILTER_BITS)
    seen = np.zeros(1 << _FILTER_BITS, bool)
    seen[known >> shift] = True
    # The filter lets one run in thirty through to the search, which is what costs.
    maybe = np.flatnonzero(seen[runs.grams >> shift])
    place = np.searchsorted(known, runs.grams[maybe])
    is_hit = known[np.minimum(place, len(known) - 1)] == runs.grams[maybe]
    hit = maybe[is_hit]
    # Runs come in order, so those of one paragraph lie side by side.
    changes = np.flatnonzero(np.diff((runs.document << 32) | runs.paragraph)) + 1
    group = np.searchsorted(changes, hit, side="right")
    total = np.diff(np.r_[0, changes, len(runs.grams)])[group]
    return Hits(task.rows[runs.document[hit]], runs.paragraph[hit], place[is_hit], total)


def flag(parts: Sequence[Hits], owner: np.ndarray, settings: Decontamination) -> list[list[Flag]]:
    """The flagged documents of every part; `owner` gives the held-out document of each held-out run."""
    documents = np.zeros(len(owner), np.int64)
    for hits in parts:
        pairs = np.unique((hits.row << 32) | hits.gram)
        documents += np.bincount(pairs & 0xFFFFFFFF, minlength=len(owner))
    is_telling = documents <= settings.common
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
        runs, share = int(total[group[0]]), len(group) / int(total[group[0]])
        enough = min(settings.min_runs, runs)
        if share < settings.overlap or len(np.unique(gram[group])) < enough or int(row[group[0]]) in flags:
            continue
        heldout = int(np.bincount(owner[gram[group]]).argmax())
        place = f"{share:.2f} of the {runs} runs of paragraph {int(paragraph[group[0]]) + 1}"
        flags[int(row[group[0]])] = Flag(int(row[group[0]]), heldout, place)
    return list(flags.values())
