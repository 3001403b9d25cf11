"""Documents in, token store out: one task for each file of documents, one ledger for all their shards.

A task that is done leaves its line of the ledger below .work, so a step that died goes on where it was.
Shards are named after their place among all, so their bytes are the same whoever writes them. A shard's
documents are held by domain until it is full; then each of its files is written whole, and hashed on the way.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from lmlab.core.errors import InputError
from lmlab.dataflow.counters import count
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path
from lmlab.tokens.documents import DocumentFile, read_file
from lmlab.tokens.encode import encode_pieces
from lmlab.tokens.fast import Encoder, encoder_of
from lmlab.tokens.store import FORMAT, OFFSET, SIZE, Head, Ledger, Run, Shard, verify
from lmlab.tokens.tokenizer import end_of_text_id, load_tokenizer, vocab_size

SHARD_TOKENS = 1 << 26  # a shard is closed by the document that reaches this many: 256 MB in memory at most
GROUP_BYTES = 16 << 20  # so much of small files is one task
Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Encoding:
    """With what documents are encoded: the same for every task of a store."""

    tokenizer: Path
    head: Head
    encoder: str
    """As shards name it."""
    why: str = ""
    """Why no faster one is used."""


@dataclass(frozen=True)
class ShardTask:
    """What is encoded into one shard: a part of a corpus, or some of a person's own files."""

    files: tuple[DocumentFile, ...]
    encoding: Encoding
    out: Path
    name: str


def encoding_with(
    tokenizer: Path, address: str, eos_id: int | None = None, encoder: str | None = None
) -> Encoding:
    """Load a tokenizer, find which encoder is equal to it unless one is named, and note both."""
    loaded = load_tokenizer(tokenizer)
    chosen = encoder_of(loaded, encoder)
    sha256 = hashlib.sha256(loaded.to_str().encode()).hexdigest()
    eos_id = end_of_text_id(loaded) if eos_id is None else eos_id
    return Encoding(tokenizer, Head(vocab_size(loaded), eos_id, address, sha256), chosen.name, chosen.why)


def write_store(
    out: Path,
    files: Sequence[DocumentFile],
    encoding: Encoding,
    runner: Runner,
    say: Say,
    write: Callable[[ShardTask], list[Shard]] | None = None,
) -> Ledger:
    """Encode files into a store: of documents, unless `write` knows others. Equal input gives equal bytes."""
    text = f"encoding with {encoding.encoder}" + (f" ({encoding.why})" if encoding.why else "")
    say(text, 0, 1)
    groups = list(_groups(files))
    tasks = [
        ShardTask(group, encoding, out, f"shard-{index:05d}-of-{len(groups):05d}")
        for index, group in enumerate(groups)
    ]
    shards = runner.run(
        write or write_documents,
        tasks,
        name="tokenize",
        progress=lambda done, total: say(text, done, total),
    )
    (out / ".work").remove_tree()
    return write_ledger(out, encoding.head, [shard for some in shards for shard in some])


def _groups(files: Sequence[DocumentFile]) -> Iterator[tuple[DocumentFile, ...]]:
    """A part of a corpus alone, so that shards stand beside parts; small files of other folders together."""
    group: list[DocumentFile] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.path.size() if file.domain else GROUP_BYTES
        if size >= GROUP_BYTES:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def write_documents(task: ShardTask) -> list[Shard]:
    """Encode one file of documents."""
    return resumed(task, _encode_file)


def resumed(task: ShardTask, write: Callable[[ShardTask], list[Shard]]) -> list[Shard]:
    """A task's shards: those that a dead attempt finished, if they are whole, else what `write` makes."""
    stats = [(file, stat.size_bytes, stat.etag) for file in task.files for stat in [file.path.stat()]]
    made_of = xxhash.xxh3_64_hexdigest(repr((stats, task.encoding)).encode())
    note = task.out / ".work" / f"{task.name}.{made_of}.json"
    if data := note.read_if_present():
        shards = msgspec.json.decode(data, type=list[Shard])
        try:
            verify(task.out, shards)
        except InputError:
            count("shards_broken", len(shards))  # what the crash of a machine left is written again
        else:
            count("shards_resumed", len(shards))
            return shards
    shards = write(task)
    note.write_bytes(msgspec.json.encode(shards))
    return shards


@lru_cache(maxsize=1)
def encoder_at(tokenizer: Path, name: str) -> Encoder:
    """The encoder of this process: loading a tokenizer takes seconds."""
    return encoder_of(load_tokenizer(tokenizer), name)


def _encode_file(task: ShardTask) -> list[Shard]:
    encoding = task.encoding
    writer = ShardWriter(task.out, task.name, encoding.head, encoding.encoder)
    waiting: deque[tuple[str, str, int]] = deque()  # domain, id and size of what is read, but not yet encoded
    parts = []

    def texts() -> Iterator[bytes]:
        for document in (document for file in task.files for document in read_file(file)):
            waiting.append((document.domain, document.id, len(document.data)))
            yield document.data

    for ids, is_last in encode_pieces(encoder_at(encoding.tokenizer, encoding.encoder), texts()):
        parts.append(ids.astype(writer.dtype))
        if is_last:
            writer.add(*waiting.popleft(), parts)
            count("documents")
            parts = []
    return writer.finish()


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
