"""The token store: flat files of ids by domain, and one ledger that names them all.

`ledger.json` holds every shard's size, so opening 2,000 shards reads one file. A shard's own files are
opened, and held against the ledger, when they are first touched. The ledger is written last.

    <shard>.tokens   ids, little-endian uint16 (uint32 above 65,536), each document followed by the end id
    <shard>.offsets  int64, documents + 1: where each document starts in .tokens
    <shard>.bytes    int64: UTF-8 bytes of each document
    <shard>.ids      16 raw bytes for each document's id
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as LocalPath
from typing import BinaryIO

import msgspec
import numpy as np

from lmlab.core.errors import InputError
from lmlab.storage import Path

FORMAT = 1
SHARD_TOKENS = 1 << 30  # a shard is closed by the document that reaches this many tokens


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard's line in the ledger."""

    file: str
    domain: str
    tokens: int
    documents: int
    bytes: int


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `ledger.json` holds."""

    format: int
    dtype: str
    vocab: int
    eos_id: int
    tokenizer: str
    shards: list[Shard]


@dataclass(frozen=True)
class Source:
    """The documents of one domain, as arrays over all its shards.

    They are memory-mapped when the domain has one shard (`tokenize` writes one up to a billion tokens), and
    joined in memory otherwise.
    """

    domain: str
    folder: Path
    dtype: np.dtype
    shards: tuple[Shard, ...]

    @property
    def token_count(self) -> int:
        """Tokens of the domain, end-of-document ids included; reads no shard."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def document_count(self) -> int:
        """Documents of the domain; reads no shard."""
        return sum(shard.documents for shard in self.shards)

    @cached_property
    def tokens(self) -> np.ndarray:
        """All ids in order, each document followed by the end-of-document id."""
        return _joined([_array(self.folder, s, "tokens", self.dtype, s.tokens) for s in self.shards])

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64, documents + 1: document i is `tokens[offsets[i]:offsets[i + 1]]`, its end id included."""
        starts, base = [np.zeros(1, np.int64)], 0
        for shard in self.shards:
            own = _array(self.folder, shard, "offsets", np.dtype("<i8"), shard.documents + 1)
            if own[-1] != shard.tokens:
                raise InputError(
                    f"{self.folder / shard.file}.offsets ends at {own[-1]}, not {shard.tokens} as in the "
                    "ledger, so documents would be cut wrongly. Tokenize again."
                )
            starts.append(own[1:] + base)
            base += shard.tokens
        return np.concatenate(starts)

    @cached_property
    def byte_counts(self) -> np.ndarray:
        """int64: UTF-8 bytes of each document's text."""
        return _joined([_array(self.folder, s, "bytes", np.dtype("<i8"), s.documents) for s in self.shards])

    @cached_property
    def ids(self) -> np.ndarray:
        """Void of 16 bytes: the id of each document; `bytes(ids[i]).hex()` is the id in the Parquet files."""
        return _joined([_array(self.folder, s, "ids", np.dtype("V16"), s.documents) for s in self.shards])


@dataclass(frozen=True)
class Store:
    """An open token store: the ledger, and a `Source` for each domain."""

    folder: Path
    ledger: Ledger

    @property
    def vocab(self) -> int:
        """Ids of the tokenizer; every token is below it."""
        return self.ledger.vocab

    @property
    def eos_id(self) -> int:
        """The id that follows each document."""
        return self.ledger.eos_id

    @property
    def tokens(self) -> int:
        """Tokens of all domains, end-of-document ids included."""
        return sum(shard.tokens for shard in self.ledger.shards)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains, sorted."""
        return tuple(sorted({shard.domain for shard in self.ledger.shards}))

    def source(self, domain: str) -> Source:
        """The documents of one domain; InputError for a domain that the store does not have."""
        shards = tuple(shard for shard in self.ledger.shards if shard.domain == domain)
        if not shards:
            raise InputError(f"{self.folder} has no domain {domain!r}. It has {', '.join(self.domains)}.")
        return Source(domain, self.folder, np.dtype(self.ledger.dtype).newbyteorder("<"), shards)


def open_store(folder: Path) -> Store:
    """Open a token store by its ledger alone; InputError when there is none or it is of another format."""
    file = folder / "ledger.json"
    if not file.exists():
        raise InputError(
            f"{folder} has no ledger.json, so it is no token store. Give one made by `tokenize`."
        )
    try:
        ledger = msgspec.json.decode(file.read_bytes(), type=Ledger)
    except msgspec.DecodeError as error:
        raise InputError(f"{file} is not a ledger ({error}). Tokenize again.") from error
    if ledger.format != FORMAT:
        raise InputError(
            f"{file} has format {ledger.format}, and this lmlab reads format {FORMAT}, so its files could be "
            "misread. Tokenize again, or use the lmlab that wrote it."
        )
    return Store(folder, ledger)


class StoreWriter:
    """Writes documents into shards by domain; `finish` publishes the ledger. Use as a context manager.

    Files appear by rename when their shard is closed. Leaving the block early publishes no ledger.
    """

    def __init__(self, folder: Path, *, vocab: int, eos_id: int, tokenizer: str) -> None:
        self.folder, self.vocab, self.eos_id, self.tokenizer = folder, vocab, eos_id, tokenizer
        self.dtype = np.dtype("<u2" if vocab <= 1 << 16 else "<u4")
        self.shards: list[Shard] = []
        self._open: dict[str, _ShardWriter] = {}

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for writer in self._open.values():
            writer.abandon(error)
        self._open = {}

    def add(self, domain: str, id_hex: str, size_bytes: int, tokens: np.ndarray) -> None:
        """Append one document (its ids without the end id) to its domain's shard."""
        if domain not in self._open:
            index = sum(shard.domain == domain for shard in self.shards)
            self._open[domain] = _ShardWriter(self.folder, domain, index)
        writer = self._open[domain]
        writer.add(id_hex, size_bytes, np.append(tokens, self.eos_id).astype(self.dtype))
        if writer.tokens >= SHARD_TOKENS:
            self.shards.append(self._open.pop(domain).close())

    def finish(self) -> Ledger:
        """Close all shards and publish the ledger; InputError when no document was added."""
        self.shards += [writer.close() for writer in self._open.values()]
        self._open = {}
        if not self.shards:
            raise InputError(
                "there is no document to tokenize, so the store would be empty. Check the corpus."
            )
        self.shards.sort(key=lambda shard: (shard.domain, shard.file))
        name = "uint16" if self.dtype.itemsize == 2 else "uint32"
        ledger = Ledger(FORMAT, name, self.vocab, self.eos_id, self.tokenizer, self.shards)
        text = msgspec.json.format(msgspec.json.encode(ledger), indent=1)
        (self.folder / "ledger.json").write_bytes(text + b"\n")
        return ledger


class _ShardWriter:
    """The four files of one shard while they are being written."""

    def __init__(self, folder: Path, domain: str, index: int) -> None:
        self.name, self.domain = f"{domain}-{index:05d}", domain
        self.tokens, self.documents, self.size_bytes = 0, 0, 0
        self._stack = ExitStack()
        self._tokens, self._offsets, self._bytes, self._ids = (
            self._file(folder / f"{self.name}.{kind}") for kind in ("tokens", "offsets", "bytes", "ids")
        )
        self._offsets.write(np.int64(0).tobytes())

    def _file(self, path: Path) -> BinaryIO:
        temporary: LocalPath = self._stack.enter_context(path.writer())
        return self._stack.enter_context(temporary.open("wb"))

    def add(self, id_hex: str, size_bytes: int, tokens: np.ndarray) -> None:
        self.tokens += len(tokens)
        self.documents += 1
        self.size_bytes += size_bytes
        self._tokens.write(tokens.tobytes())
        self._offsets.write(np.int64(self.tokens).tobytes())
        self._bytes.write(np.int64(size_bytes).tobytes())
        self._ids.write(bytes.fromhex(id_hex))

    def close(self) -> Shard:
        self._stack.close()
        return Shard(self.name, self.domain, self.tokens, self.documents, self.size_bytes)

    def abandon(self, error: BaseException | None) -> None:
        failure = error or RuntimeError("the store was left before `finish`")
        self._stack.__exit__(type(failure), failure, failure.__traceback__)


def _array(folder: Path, shard: Shard, kind: str, dtype: np.dtype, count: int) -> np.ndarray:
    """One file of a shard, mapped; its size is held against the ledger first."""
    path = folder / f"{shard.file}.{kind}"
    expected = count * dtype.itemsize
    found = path.size() if path.exists() else None
    if found != expected:
        state = "is missing" if found is None else f"has {found:,} bytes"
        raise InputError(
            f"{path} {state}, and the ledger says {expected:,}, so the store is not whole. Tokenize again."
        )
    return np.memmap(path.local, dtype=dtype, mode="r", shape=(count,))


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
