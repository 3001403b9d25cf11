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
from lmlab.tokens.store import Head, Ledger, Shard, verify
from lmlab.tokens.tokenizer import end_of_text_id, load_tokenizer, vocab_size
from lmlab.tokens.writing import ShardWriter, write_ledger

GROUP_BYTES = 16 << 20
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
