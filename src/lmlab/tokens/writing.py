"""Writing shards: documents are held by domain until their shard is full, then each file is written whole and
hashed on the way. The ledger comes last; without it there is no store."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.store import FORMAT, OFFSET, SIZE, Head, Ledger, Run, Shard

SHARD_TOKENS = 1 << 26  # a shard is closed by the document that reaches this many: 256 MB in memory at most


class _Document(NamedTuple):
    id: bytes
    size_bytes: int
    tokens: list[np.ndarray]
    length: int
    mask: np.ndarray | None


class ShardWriter:
    """Writes documents into a shard `name` (and `name.1` …, where it gets too long)."""

    def __init__(self, folder: Path, name: str, head: Head, encoder: str = "") -> None:
        self.folder, self.name, self.head, self.encoder = folder, name, head, encoder
        self.dtype = head.dtype
        self.shards: list[Shard] = []
        self.notes: Counter[str] = Counter()
        """What was noticed on the way, counted; goes into the ledger."""
        self._waiting: dict[str, list[_Document]] = {}
        self._tokens = 0

    def add(
        self,
        domain: str,
        id_hex: str,
        size_bytes: int,
        tokens: Iterable[np.ndarray],
        mask: np.ndarray | None = None,
    ) -> None:
        """Append one document: its ids in pieces, without the end id; `mask` has one entry for each id."""
        pieces = [np.asarray(piece).astype(self.dtype, copy=False) for piece in tokens]
        pieces.append(np.array([self.head.eos_id], self.dtype))
        length = sum(map(len, pieces))
        document = _Document(bytes.fromhex(id_hex), size_bytes, pieces, length, mask)
        self._waiting.setdefault(domain, []).append(document)
        self._tokens += length
        if self._tokens >= SHARD_TOKENS:
            self._write()

    def finish(self) -> list[Shard]:
        """Write what is left; all shards in order."""
        if self._waiting:
            self._write()
        return self.shards

    def _write(self) -> None:
        name = f"{self.name}.{len(self.shards)}" if self.shards else self.name
        by_domain = sorted(self._waiting.items())
        documents = [document for _, own in by_domain for document in own]
        columns: dict[str, Iterable[Any]] = {
            "tokens": (piece for document in documents for piece in document.tokens),
            "offsets": [np.cumsum([0, *(document.length for document in documents)], dtype=OFFSET)],
            "bytes": [np.array([document.size_bytes for document in documents], SIZE)],
            "ids": (document.id for document in documents),
        }
        masks = [document.mask for document in documents if document.mask is not None]
        if masks:
            columns["mask"] = (np.append(mask, 0).astype(np.uint8) for mask in masks)
        runs = [
            Run(domain, sum(d.length for d in own), len(own), sum(d.size_bytes for d in own))
            for domain, own in by_domain
        ]
        hashes, notes = write_columns(self.folder, name, columns), dict(sorted(self.notes.items()))
        self.shards.append(Shard(name, self.encoder, hashes, runs, notes))
        self._waiting, self._tokens, self.notes = {}, 0, Counter()


def write_columns(folder: Path, name: str, columns: Mapping[str, Iterable[Any]]) -> dict[str, str]:
    """Write each column of a shard, by pieces, to a file that appears when it is whole; their xxh3-64."""
    hashes = {}
    for kind, pieces in columns.items():
        digest = xxhash.xxh3_64()
        with (folder / f"{name}.{kind}").open_writer() as file:
            for piece in pieces:
                data = piece if isinstance(piece, bytes) else piece.tobytes()
                digest.update(data)
                file.write(data)
        hashes[kind] = digest.hexdigest()
    return hashes


def write_ledger(
    folder: Path, head: Head, shards: Sequence[Shard], sources: Sequence[dict[str, Any]] = ()
) -> Ledger:
    """Publish a store whose shards are written; InputError when they hold no document."""
    if not shards:
        raise InputError("there is no document to tokenize, so the store would be empty. Check the corpus.")
    ledger = Ledger(FORMAT, head, list(shards), list(sources))
    (folder / "ledger.json").write_bytes(msgspec.json.format(msgspec.json.encode(ledger), indent=1) + b"\n")
    return ledger
