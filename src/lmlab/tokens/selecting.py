"""New stores out of others without tokenizing again: merged, or a slice of some domains up to so many tokens.

Documents are sorted by the hash of their text, so the first ones of a domain are a random sample of it, and
the same one every time. What was there and what was taken stands in the new ledger.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.store import OFFSET, SIZE, Ledger, Run, Shard, Source, Store
from lmlab.tokens.write import write_columns, write_ledger

BLOCK_TOKENS = 1 << 22


def select_documents(
    out: Path,
    stores: Mapping[str, Store],
    budgets: Mapping[str, int] | None = None,
    without: Sequence[Store] = (),
) -> Ledger:
    """Copy documents into a new store at `out`: of each domain up to its budget of tokens, or everything.

    `stores` are by address. What an earlier store or one of `without` holds too is left out.
    """
    first = _check_alike(stores)
    taken = [other.source(domain).ids for other in without for domain in other.domains]
    seen = np.concatenate(taken) if taken else np.zeros(0, "V16")
    shards: list[Shard] = []
    rows: list[dict[str, Any]] = []
    domains = sorted({domain for store in stores.values() for domain in store.domains})
    if unknown := sorted(set(budgets or ()) - set(domains)):
        raise InputError(f"no store has the domain {unknown[0]!r}. They have {', '.join(domains)}.")
    for domain in domains if budgets is None else sorted(budgets):
        left = None if budgets is None else budgets[domain]
        for address, store in stores.items():
            if domain not in store.domains:
                continue
            source = store.source(domain)
            is_new = ~np.isin(source.ids.view("S16"), seen.view("S16"))
            kept = is_new
            if left is not None:  # the first new documents that fit
                kept = is_new & (np.cumsum(np.where(is_new, np.diff(source.offsets), 0)) <= left)
            row: dict[str, Any] = {
                "store": address,
                "domain": domain,
                "tokens_there": source.token_count,
                "tokens": 0,
            }
            row |= {"documents": int(kept.sum()), "repeated": int((~is_new).sum())}
            if kept.any():
                encoder = ", ".join(store.ledger.encoders())
                shards.append(_copy(out, f"shard-{len(shards):05d}", source, kept, encoder))
                row["tokens"] = shards[-1].tokens
                seen = np.concatenate([seen, source.ids[kept]])
            left = None if left is None else left - row["tokens"]
            rows.append(row)
    return write_ledger(out, first.ledger.head, shards, rows)


def _check_alike(stores: Mapping[str, Store]) -> Store:
    first_address, first = next(iter(stores.items()))
    for address, store in stores.items():
        theirs, ours = ((*msgspec.structs.astuple(s.ledger.head), s.ledger.has_mask) for s in (store, first))
        if (theirs[:2], theirs[3:]) != (ours[:2], ours[3:]):
            raise InputError(
                f"{address} has vocab, end id, tokenizer and mask {theirs}, and {first_address} {ours}: "
                "their ids mean other text, so they can't be one store. Tokenize one of them again."
            )
    return first


def _copy(out: Path, name: str, source: Source, kept: np.ndarray, encoder: str) -> Shard:
    lengths = np.diff(source.offsets)[kept]
    sizes = source.byte_counts[kept]
    ends = np.cumsum(lengths, dtype=OFFSET)
    columns: dict[str, Any] = {
        "tokens": _spans(source, "tokens", kept),
        "offsets": [np.zeros(1, OFFSET), ends],
        "bytes": [sizes.astype(SIZE)],
        "ids": [source.ids[kept]],
    }
    if "mask" in source.places[0].shard.hashes:
        columns["mask"] = _spans(source, "mask", kept)
    hashes = write_columns(out, name, columns)
    return Shard(name, encoder, hashes, [Run(source.domain, int(ends[-1]), len(lengths), int(sizes.sum()))])


def _spans(source: Source, kind: str, kept: np.ndarray) -> Iterator[np.ndarray]:
    """The tokens or masks of the kept documents, neighbours together."""
    stream = getattr(source, kind)
    borders = np.flatnonzero(np.diff(np.concatenate([[0], kept, [0]]).astype(np.int8)))
    for first, last in borders.reshape(-1, 2):
        start, stop = int(source.offsets[first]), int(source.offsets[last])
        for begin, end in pairwise([*range(start, stop, BLOCK_TOKENS), stop]):
            yield stream[begin:end]
