"""The split: which documents of every domain are kept out of training, decided by id alone."""

from collections.abc import Sequence

import numpy as np
import xxhash

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.corpus.config import Holdout


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
