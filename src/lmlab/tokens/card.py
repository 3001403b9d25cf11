"""The card of a token store that is published as a data set. Every number on it comes from the ledger."""

from collections.abc import Iterable

from lmlab.core.units import format_bytes
from lmlab.tokens.store import Ledger

_CARD = """---
pretty_name: {name}
tags: [tokens, lmlab]
---
# {name}

{tokens:,} tokens of {documents:,} documents ({size} of text) in {shards:,} shards: ids of {head.tokenizer}
({head.vocab:,} ids; its tokenizer.json has sha256 {head.tokenizer_sha256:.16}). Each document ends with the
id {head.eos_id}.
Encoded by (documents): {encoders}.

{domains}
{sources}
## How to read it

`ledger.json` names the shards and what each holds. Little-endian, no header:

```python
import json, numpy as np
shard = json.load(open("ledger.json"))["shards"][0]
tokens = np.fromfile(shard["file"] + ".tokens", "{head.dtype.name}")
offsets = np.fromfile(shard["file"] + ".offsets", "int64")   # document i is tokens[offsets[i]:offsets[i + 1]]
```
"""
_SOURCES = ("store", "domain", "tokens_there", "tokens", "documents", "repeated")


def card(ledger: Ledger, name: str) -> str:
    """A README.md with the header that data hubs read."""
    totals = ledger.totals().values()
    tokens, documents = sum(run.tokens for run in totals), sum(run.documents for run in totals)
    domains = [
        (run.domain, run.documents, run.tokens, f"{run.tokens / tokens:.1%}", run.bytes, f"{run.ratio:.3f}")
        for run in totals
    ]
    sources = [[row[key] for key in _SOURCES] for row in ledger.sources]
    head = ("store", "domain", "tokens there", "tokens taken", "documents taken", "repeats left out")
    return _CARD.format(
        name=name,
        head=ledger.head,
        tokens=tokens,
        documents=documents,
        size=format_bytes(sum(run.bytes for run in totals)),
        shards=len(ledger.shards),
        encoders=", ".join(f"{name or 'not known'} {n:,}" for name, n in ledger.encoders().items()),
        domains=_table(("domain", "documents", "tokens", "share", "bytes", "bytes per token"), domains),
        sources=f"\n## What it was taken from\n\n{_table(head, sources)}" if sources else "",
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in [list(head), ["---"] * len(list(head)), *cells])
