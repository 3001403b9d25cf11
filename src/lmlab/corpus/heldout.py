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

    domains: list[str]
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
    described = runner.run(partial(describe, rules=rules), parts.paths, name="holdout")
    rows = np.concatenate([part[0] + start for part, start in zip(described, parts.starts, strict=False)])
    ids, domains = ([value for part in described for value in part[i]] for i in (1, 2))
    sizes = np.concatenate([part[3] for part in described])
    is_held = held_out(ids, domains, sizes, settings)
    mark(parts, out, rows[is_held], pa.table({"reason": [HELD_OUT] * int(is_held.sum())}), runner)
    return Split(domains, sizes, is_held)


def describe(part: Path, rules: Sequence[Rule]) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
    """Row, id, domain and bytes of every document of a part that the rules keep."""
    table = read_parquet(part, DOCUMENTS.names)
    rows = np.arange(table.num_rows)
    for rule in rules:
        table, reasons = judged(rule, table, part.name)
        kept = np.array([reason is None for reason in reasons], bool)
        table, rows = table.filter(pa.array(kept)), rows[kept]
    return rows, table.column("id").to_pylist(), _domains(table), text_sizes(table)


def _domains(table: pa.Table) -> list[str]:
    """The domain of every document; InputError names one that has none."""
    domains = [orjson.loads(meta).get("domain") for meta in table.column("meta").to_pylist()]
    for row, domain in enumerate(domains):
        if not isinstance(domain, str):
            source, meta = (table.column(name)[row].as_py() for name in ("source_id", "meta"))
            raise InputError(f"{source} has no domain in its meta {meta[:80]!r}. Add one.")
    return domains


def held_out(ids: Sequence[str], domains: Sequence[str], sizes: np.ndarray, holdout: Holdout) -> np.ndarray:
    """bool per document: ids that hash below `share`, and in every domain more until both minima are met.

    Raises InputError for a domain that can't meet them and still have text to train on.

    >>> sizes = np.array([60_000, 60_000, 60_000])
    >>> int(held_out(["a", "b", "c"], ["prose"] * 3, sizes, Holdout()).sum())
    2
    """
    rank = np.array([xxhash.xxh3_64_intdigest(value.encode(), seed=holdout.seed) for value in ids], np.uint64)
    chosen = rank < np.uint64(int(holdout.share * 2.0**64))
    domain_of = np.array(domains, dtype=str)
    for domain in sorted(set(domains)):
        rows = np.flatnonzero(domain_of == domain)
        ordered = rows[np.argsort(rank[rows], kind="stable")]
        enough = max(
            holdout.min_documents,
            1 + int(np.searchsorted(np.cumsum(sizes[ordered]), holdout.min_bytes)),
            int(chosen[ordered].sum()),
        )
        if enough >= len(ordered):
            raise InputError(
                f"Domain {domain!r} has {len(ordered)} documents, {format_bytes(float(sizes[rows].sum()))}: "
                f"too little to hold out {holdout.min_documents} documents and "
                f"{format_bytes(holdout.min_bytes)} and still train on it. Add text, join it with another "
                "domain, or lower the minima of Holdout."
            )
        chosen[ordered[:enough]] = True
    return chosen
