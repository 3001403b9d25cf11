"""The split: which documents of every domain are kept out of training, decided by id alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.corpus.attributes import Parts, mark
from lmlab.corpus.config import Holdout, Rule
from lmlab.corpus.schema import DOCUMENTS, text_sizes
from lmlab.corpus.selecting import judged
from lmlab.dataflow.files import read_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path

HELD_OUT = "held out"


@dataclass(frozen=True)
class Split:
    """The documents that could be held out, in order."""

    names: list[str]
    """Of the domains."""
    domain: np.ndarray
    """Place in `names`."""
    sizes: np.ndarray
    """int64 UTF-8 bytes."""
    is_held: np.ndarray
    """bool"""


def mark_held_out(
    documents: Path, out: Path, rules: tuple[Rule, ...], settings: Holdout, runner: Runner
) -> Split:
    """Say of every document whether it is held out, as the `reason` it is no training text.

    Only those that the rules keep are looked at. InputError for a domain that can't spare any.
    """
    parts = Parts({"": documents})
    look_at = partial(describe, rules=rules, seed=settings.seed)
    described = runner.run(look_at, parts.paths, name="holdout")
    rows = np.concatenate([part[0] + start for part, start in zip(described, parts.starts, strict=False)])
    ranks, sizes = (np.concatenate([part[i] for part in described]) for i in (1, 2))
    domains = pa.chunked_array([part[3] for part in described]).unify_dictionaries().combine_chunks()
    names, domain = domains.dictionary.to_pylist(), domains.indices.to_numpy()
    is_held = held_out(ranks, domain, names, sizes, settings)
    mark(parts, out, rows[is_held], pa.table({"reason": [HELD_OUT] * int(is_held.sum())}), runner)
    return Split(names, domain, sizes, is_held)


def describe(
    part: Path, rules: Sequence[Rule], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, pa.DictionaryArray]:
    """Row, rank, bytes and domain of every document of a part that the rules keep."""
    table = read_parquet(part, DOCUMENTS.names)
    rows = np.arange(table.num_rows)
    for rule in rules:
        table, reasons = judged(rule, table, part.name)
        kept = np.array([reason is None for reason in reasons], bool)
        table, rows = table.filter(pa.array(kept)), rows[kept]
    domains = pa.array(_domains(table), pa.string()).dictionary_encode()
    return rows, ranks_of(table.column("id").to_pylist(), seed), text_sizes(table), domains


def _domains(table: pa.Table) -> list[str]:
    """The domain of every document; InputError names one that has none."""
    domains = [orjson.loads(meta).get("domain") for meta in table.column("meta").to_pylist()]
    for row, domain in enumerate(domains):
        if not isinstance(domain, str):
            source, meta = (table.column(name)[row].as_py() for name in ("source_id", "meta"))
            raise InputError(f"{source} has no domain in its meta {meta[:80]!r}. Add one.")
    return domains


def ranks_of(ids: Sequence[str], seed: int) -> np.ndarray:
    """uint64 for each id: documents are held out in this order."""
    return np.array([xxhash.xxh3_64_intdigest(value.encode(), seed=seed) for value in ids], np.uint64)


def held_out(
    ranks: np.ndarray, domain: np.ndarray, names: Sequence[str], sizes: np.ndarray, holdout: Holdout
) -> np.ndarray:
    """bool per document: ranks below `share`, and in every domain more until both minima are met.

    Raises InputError for a domain that can't meet them and still have text to train on.

    >>> sizes = np.array([60_000, 60_000, 60_000])
    >>> int(held_out(ranks_of("abc", 0), np.zeros(3, int), ["prose"], sizes, Holdout()).sum())
    2
    """
    chosen = ranks < np.uint64(int(holdout.share * 2.0**64))
    ends = np.cumsum(np.bincount(domain, minlength=len(names)))
    for name, ordered in zip(names, np.split(np.lexsort((ranks, domain)), ends[:-1]), strict=True):
        enough = max(
            holdout.min_documents,
            1 + int(np.searchsorted(np.cumsum(sizes[ordered]), holdout.min_bytes)),
            int(chosen[ordered].sum()),
        )
        if enough >= len(ordered):
            raise InputError(
                f"Domain {name!r} has {len(ordered)} documents, {format_bytes(float(sizes[ordered].sum()))}: "
                f"too little to hold out {holdout.min_documents} documents and "
                f"{format_bytes(holdout.min_bytes)} and still train on it. Add text, join it with another "
                "domain, or lower the minima of Holdout."
            )
        chosen[ordered[:enough]] = True
    return chosen
