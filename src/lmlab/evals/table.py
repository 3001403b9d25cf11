"""The table of an evaluation: a column for each model or baseline, a row for each document; its summaries.

Bits per byte of a domain are all its bits over all its bytes. `macro` is the mean over domains, each counting
the same; `micro` is all bits over all bytes.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from lmlab.evals.heldout import HeldOut
from lmlab.storage import Path, write_json

FEW = 5  # documents shown at each end of `top_documents.json`
SHORTEST = 200  # bytes; below, a document's bits per byte say more about its length than about the model


@dataclass(frozen=True)
class Column:
    """One model or baseline on all held-out documents."""

    name: str
    kind: str
    """"model", "compressor" or "n-gram"."""
    how: str
    """How the numbers were made, in one sentence for a reader of the report."""
    nats: Float[np.ndarray, " documents"]
    facts: dict[str, int | str]
    """Further facts for the reader: parameters, tokens trained on."""


def domain_bpb(held_out: HeldOut, column: Column) -> Float[np.ndarray, " domains"]:
    """Bits per byte of each domain."""
    count = len(held_out.domains)
    nats = np.bincount(held_out.domain, weights=column.nats, minlength=count)
    size_bytes = np.bincount(held_out.domain, weights=held_out.size_bytes, minlength=count)
    return nats / size_bytes / math.log(2)


def macro_bpb(held_out: HeldOut, column: Column) -> float:
    """Mean over domains."""
    return float(domain_bpb(held_out, column).mean())


def micro_bpb(held_out: HeldOut, column: Column) -> float:
    """All bits over all bytes."""
    return float(column.nats.sum() / held_out.size_bytes.sum() / math.log(2))


def write_scores(folder: Path, held_out: HeldOut, columns: list[Column]) -> None:
    """Write `scores.json`, `documents.parquet`, `top_documents.json`; the first column is the main run's."""
    write_json(folder / "scores.json", scores(held_out, columns))
    write_json(folder / "top_documents.json", top_documents(held_out, columns))
    table = {
        "id": pa.array(held_out.ids, pa.string()),
        "domain": pa.array([held_out.domains[index] for index in held_out.domain], pa.string()),
        "bytes": pa.array(held_out.size_bytes),
        "tokens": pa.array(held_out.tokens),
        **{f"nats/{column.name}": pa.array(column.nats) for column in columns},
    }
    with (folder / "documents.parquet").writer() as temporary:
        pq.write_table(pa.table(table), temporary, compression="zstd")


def scores(held_out: HeldOut, columns: list[Column]) -> dict[str, Any]:
    """The content of `scores.json`."""
    by_column = {column.name: domain_bpb(held_out, column) for column in columns}
    domains = []
    for index, domain in enumerate(held_out.domains):
        rows = held_out.rows(domain)
        domains.append(
            {
                "domain": domain,
                "documents": rows.stop - rows.start,
                "bytes": int(held_out.size_bytes[rows].sum()),
                "tokens": int(held_out.tokens[rows].sum()),
                "bpb": {name: float(values[index]) for name, values in by_column.items()},
            }
        )
    return {
        "unit": "bits per byte",
        "main": columns[0].name,
        "macro": {column.name: macro_bpb(held_out, column) for column in columns},
        "micro": {column.name: micro_bpb(held_out, column) for column in columns},
        "domains": domains,
        "columns": [
            {"name": column.name, "kind": column.kind, "how": column.how, **column.facts}
            for column in columns
        ],
    }


def top_documents(held_out: HeldOut, columns: list[Column]) -> dict[str, Any]:
    """The documents that the main model finds hardest and easiest, with how they begin."""
    per_document = {
        column.name: column.nats / np.maximum(held_out.size_bytes, 1) / math.log(2) for column in columns
    }
    main = per_document[columns[0].name]
    order = [int(row) for row in np.argsort(main, kind="stable") if held_out.size_bytes[row] >= SHORTEST]

    def described(row: int) -> dict[str, Any]:
        return {
            "id": held_out.ids[row],
            "domain": held_out.domains[held_out.domain[row]],
            "bytes": int(held_out.size_bytes[row]),
            "bpb": {name: float(values[row]) for name, values in per_document.items()},
            "excerpt": held_out.excerpts[row],
        }

    return {
        "model": columns[0].name,
        "shortest_bytes": SHORTEST,
        "hardest": [described(row) for row in reversed(order[-FEW:])],
        "easiest": [described(row) for row in order[:FEW]],
    }
