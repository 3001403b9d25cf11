"""Your own rule for documents, between `extract` and `curate`: what it rejects is kept beside the rest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lmlab.corpus.schema import (
    DOCUMENTS,
    REJECTED,
    Stage,
    earlier_stages,
    kind_of,
    parts_of,
    text_sizes,
    write_stages,
)
from lmlab.dataflow.failures import record
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.storage import Path

Fault = Callable[[str, dict[str, Any]], str]


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
                reasons.append(fault(row["text"], orjson.loads(row["meta"])))
        kept = np.array([not reason for reason in reasons], bool)
        write_parquet(out / part.name, table.filter(pa.array(kept)))
        if not kept.all():
            marked = table.append_column(REJECTED.field("reason"), pa.array(reasons, pa.string()))
            write_parquet(out / "rejected" / stage / part.name, marked.filter(pa.array(~kept)))
        counted.take(text_sizes(table), kept)
        counted.dropped.update(kind_of(reason) for reason in reasons if reason)
    write_stages(out, [*earlier_stages(documents), counted.row()])
    return counted
