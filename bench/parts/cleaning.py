"""What `engine.py` lets both engines do with each record, and our side of it, as a user writes them."""

import re
from typing import Any

import pyarrow as pa
import xxhash

from lmlab.dataflow import Dataset

SCHEMA = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("source_id", pa.string())])
_SPACE, _GAP = re.compile(r"\s"), re.compile(r"\s{129,}")


def clean(row: dict[str, Any]) -> dict[str, Any]:
    """Whitespace runs over 128 cut. Each holds a place 129 n and reaches 64 from it to one side."""
    text = row["text"]
    for space in _SPACE.finditer(text[::129]):
        at = 129 * space.start()
        if text[at : at + 65].isspace() or text[max(0, at - 64) : at + 1].isspace():
            text = _GAP.sub(lambda gap: gap[0][:128], text)
            break
    return {"id": xxhash.xxh3_128_hexdigest(text.encode()), "text": text, "source_id": row["id"]}


def ours(name: str, source: str, out: str, parts: str) -> None:
    """B1, and with a dedup B2."""
    data = Dataset.files(f"{source}/*.jsonl.zst").map(clean)
    if name == "B2":
        data = data.dedup("id", sort="source_id", shards=int(parts))
    data.write_parquet(out + "/part-{shard:05d}.parquet", SCHEMA).run()
