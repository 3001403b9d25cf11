"""Documents in, token store out: one task for each file of documents, one ledger for all their shards.

A task that is done leaves its line of the ledger below .work, so a step that died goes on where it was.
Shards are named after their file's place among all, so their bytes are the same whoever writes them.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import xxhash

from lmlab.core.errors import InputError
from lmlab.dataflow.counters import count
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path
from lmlab.tokens.documents import DocumentFile, read_file
from lmlab.tokens.encode import encode_pieces
from lmlab.tokens.fast import Encoder, encoder_of
from lmlab.tokens.store import Ledger, Shard, verify
from lmlab.tokens.tokenizer import end_of_text_id, load_tokenizer, vocab_size
from lmlab.tokens.writing import Head, ShardWriter, write_ledger

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
    """One file to encode into shards."""

    file: DocumentFile
    encoding: Encoding
    out: Path
    name: str


def encoding_with(tokenizer: Path, address: str, eos_id: int | None = None) -> Encoding:
    """Load a tokenizer, try which encoder is equal to it, and note both."""
    loaded = load_tokenizer(tokenizer)
    encoder = encoder_of(loaded)
    sha256 = hashlib.sha256(loaded.to_str().encode()).hexdigest()
    eos_id = end_of_text_id(loaded) if eos_id is None else eos_id
    return Encoding(tokenizer, Head(vocab_size(loaded), eos_id, address, sha256), encoder.name, encoder.why)


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
    say(text, 0, len(files))
    tasks = [
        ShardTask(file, encoding, out, f"shard-{index:05d}-of-{len(files):05d}")
        for index, file in enumerate(files)
    ]
    shards = runner.run(
        write or write_documents,
        tasks,
        name="tokenize",
        progress=lambda done, total: say(text, done, total),
    )
    (out / ".work").remove_tree()
    return write_ledger(out, encoding.head, [shard for some in shards for shard in some])


def write_documents(task: ShardTask) -> list[Shard]:
    """Encode one file of documents."""
    return resumed(task, _encode_file)


def resumed(task: ShardTask, write: Callable[[ShardTask], list[Shard]]) -> list[Shard]:
    """A task's shards: those that a dead attempt finished, if they are whole, else what `write` makes."""
    stat = task.file.path.stat()
    made_of = xxhash.xxh3_64_hexdigest(repr((task.file, stat.size_bytes, stat.etag, task.encoding)).encode())
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
        for document in read_file(task.file):
            waiting.append((document.domain, document.id, len(document.data)))
            yield document.data

    for ids, is_last in encode_pieces(encoder_at(encoding.tokenizer, encoding.encoder), texts()):
        parts.append(ids.astype(writer.dtype))
        if is_last:
            writer.add(*waiting.popleft(), parts)
            count("documents")
            parts = []
    return writer.finish()
