"""Your own texts as documents, and your own rule for them; what a rule rejects is kept beside the rest."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lmlab.core.config import Json, canonical
from lmlab.core.errors import InputError
from lmlab.corpus.schema import (
    DOCUMENTS,
    Stage,
    document_id,
    earlier_stages,
    kind_of,
    part_name,
    parts_of,
    sorted_by_id,
    table_of,
    text_sizes,
    write_rejected,
    write_stages,
)
from lmlab.dataflow.failures import record
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.storage import Path

Fault = Callable[[str, dict[str, Any]], str]


def write_documents(out: Path, domain: str, texts: Iterable[tuple[str, str]], **meta: Json) -> Stage:
    """Write (source_id, text) pairs as documents of one domain; `meta` says more, such as their license.

    Raises InputError if there is no text: a domain without documents can't be trained on or scored.
    """
    meta = {"domain": domain, "language": None, **meta}
    rows = [
        (document_id(text), text, source_id, canonical(meta)) for source_id, text in texts if text.strip()
    ]
    if not rows:
        raise InputError(f"There is no text for the domain {domain!r}. Give at least one document.")
    table = sorted_by_id(table_of(rows, DOCUMENTS))
    write_parquet(out / part_name(0, 1), table)
    counted = Stage("write").take(text_sizes(table))
    write_stages(out, [counted.row()])
    return counted


def filter_documents(documents: Path, out: Path, stage: str, fault: Fault) -> Stage:
    """Copy the documents that `fault(text, meta)` answers with "" and count the others in stages.json.

    Any other answer is the reason: "kind" or "kind: detail". Those documents go to rejected/<stage>.
    """
    counted = Stage(stage)
    for part in parts_of(documents):
        table = read_parquet(part, DOCUMENTS.names)
        reasons = []
        for index, row in enumerate(table.to_pylist()):
            with record(index, row["source_id"]):
                reasons.append(fault(row["text"], orjson.loads(row["meta"])) or None)
        kept = np.array([reason is None for reason in reasons], bool)
        write_parquet(out / part.name, table.filter(pa.array(kept)))
        write_rejected(out / "rejected" / stage / part.name, table, reasons)
        counted.take(text_sizes(table), kept)
        counted.dropped.update(kind_of(reason) for reason in reasons if reason)
    write_stages(out, [*earlier_stages(documents), counted.row()])
    return counted
