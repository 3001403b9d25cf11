"""The token store: flat files of ids, and one ledger that names them all.

A shard holds the documents of one input file, grouped by domain into runs. The ledger has every run's size,
so opening 2,000 shards reads one file; a shard's own files are opened, and held against the ledger, when they
are first touched. A domain reads as one array over all its runs. The ledger is written last.

    <shard>.tokens   ids, little-endian uint16 (uint32 above 65,536), each document followed by the end id
    <shard>.offsets  int64, documents + 1: where each document starts in .tokens
    <shard>.bytes    int64: UTF-8 bytes of each document
    <shard>.ids      16 raw bytes for each document's id
    <shard>.mask     only of conversations: a byte for each token, 1 where it is trained on
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import xxhash

from lmlab.core.errors import InputError
from lmlab.storage import Path

FORMAT = 2
OFFSET, SIZE, ID, MASK = np.dtype("<i8"), np.dtype("<i8"), np.dtype("V16"), np.dtype("u1")


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The documents of one domain in a shard, end to end."""

    domain: str
    tokens: int
    documents: int
    bytes: int

    @property
    def ratio(self) -> float:
        """Bytes per token; end-of-document ids are no text."""
        return self.bytes / max(1, self.tokens - self.documents)


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard's line in the ledger."""

    file: str
    encoder: str
    """What encoded it: "compiled" or "tokenizers"; the ids are the same."""
    hashes: dict[str, str]
    """xxh3-64 of each of its files."""
    runs: list[Run]
    """In their order in the files."""
    notes: dict[str, int] = {}
    """Of conversations: what makes training differ from use, counted."""

    @property
    def tokens(self) -> int:
        """Of all runs."""
        return sum(run.tokens for run in self.runs)

    @property
    def documents(self) -> int:
        """Of all runs."""
        return sum(run.documents for run in self.runs)


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all shards of a store share."""

    vocab: int
    eos_id: int
    tokenizer: str
    """Address."""
    tokenizer_sha256: str = ""
    """Of its tokenizer.json: stores of the same can be merged."""

    @property
    def dtype(self) -> np.dtype:
        """Of the .tokens files: the smallest that holds every id."""
        return np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `ledger.json` holds."""

    format: int
    head: Head
    shards: list[Shard]
    sources: list[dict[str, Any]] = []
    """Of a slice or merge: what was there and what was taken, by store and domain."""

    @property
    def has_mask(self) -> bool:
        """Whether its shards say which tokens are trained on."""
        return "mask" in self.shards[0].hashes

    def totals(self) -> dict[str, Run]:
        """What each domain holds in all, sorted by name."""
        sums: dict[str, list[int]] = {}
        for run in (run for shard in self.shards for run in shard.runs):
            own = sums.setdefault(run.domain, [0, 0, 0])
            own[:] = own[0] + run.tokens, own[1] + run.documents, own[2] + run.bytes
        return {domain: Run(domain, *sums[domain]) for domain in sorted(sums)}

    def encoders(self) -> dict[str, int]:
        """Documents by what encoded them."""
        names = sorted({shard.encoder for shard in self.shards})
        return {name: sum(s.documents for s in self.shards if s.encoder == name) for name in names}


@dataclass(frozen=True)
class Place:
    """Where one run lies."""

    shard: Shard
    run: Run
    first_token: int
    first_document: int


class Joined:
    """One array over parts of many files: a slice opens and reads only what it touches; `np.asarray` all."""

    def __init__(self, folder: Path, kind: str, dtype: np.dtype, places: Sequence[Place]) -> None:
        self.dtype = dtype
        self.ends = np.cumsum([place.run.tokens for place in places], dtype=np.int64)
        self.size = int(self.ends[-1])
        self._folder, self._kind, self._places = folder, kind, places
        self._parts: dict[int, np.ndarray | Path] = {}

    def __getitem__(self, wanted: slice) -> np.ndarray:
        start, stop, _ = wanted.indices(self.size)
        index = int(np.searchsorted(self.ends, start, "right"))
        pieces = [np.zeros(0, self.dtype)] if start >= stop else []
        while start < stop:
            begin, end = int(self.ends[index]) - self._places[index].run.tokens, int(self.ends[index])
            pieces.append(self._read(index, start - begin, min(stop, end) - begin))
            start, index = end, index + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def _read(self, index: int, start: int, stop: int) -> np.ndarray:
        place, size = self._places[index], self.dtype.itemsize
        if index not in self._parts:
            path = _checked(self._folder, place.shard, self._kind, place.shard.tokens * size)
            offset, shape = place.first_token * size, (place.run.tokens,)
            self._parts[index] = (
                np.memmap(path.local, self.dtype, "r", offset, shape) if path.is_local else path
            )
        part = self._parts[index]
        if isinstance(part, np.ndarray):
            return part[start:stop]
        data = part.read_range((place.first_token + start) * size, (stop - start) * size)
        return np.frombuffer(data, self.dtype)


@dataclass(frozen=True)
class Source:
    """The documents of one domain, as arrays over all its shards; tokens on a local disk are mapped."""

    domain: str
    folder: Path
    dtype: np.dtype
    places: tuple[Place, ...]

    @property
    def token_count(self) -> int:
        """Tokens of the domain, end-of-document ids included; reads no shard."""
        return sum(place.run.tokens for place in self.places)

    @property
    def document_count(self) -> int:
        """Documents of the domain; reads no shard."""
        return sum(place.run.documents for place in self.places)

    @cached_property
    def tokens(self) -> Joined:
        """All ids in order, each document followed by the end-of-document id; read by slices."""
        return Joined(self.folder, "tokens", self.dtype, self.places)

    @cached_property
    def mask(self) -> Joined:
        """uint8 for each token: 1 where it is trained on; InputError for a store without masks."""
        if "mask" not in self.places[0].shard.hashes:
            raise InputError(
                f"{self.folder} holds plain documents, so no token has a mask. Use `tokenize_chat`."
            )
        return Joined(self.folder, "mask", MASK, self.places)

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64, documents + 1: document i is `tokens[offsets[i]:offsets[i + 1]]`, its end id included."""
        parts, base = [np.zeros(1, np.int64)], 0
        for place in self.places:
            own = self._column(place, "offsets", OFFSET, 1) - place.first_token
            if own[0] != 0 or own[-1] != place.run.tokens:
                raise InputError(
                    f"{self.folder / place.shard.file}.offsets: {self.domain} ends at {own[-1]}, not "
                    f"{place.run.tokens} as in the ledger, so documents would be cut wrongly. Tokenize again."
                )
            parts.append(own[1:] + base)
            base += place.run.tokens
        return np.concatenate(parts)

    @cached_property
    def byte_counts(self) -> np.ndarray:
        """int64: UTF-8 bytes of each document's text."""
        return np.concatenate([self._column(place, "bytes", SIZE) for place in self.places])

    @cached_property
    def ids(self) -> np.ndarray:
        """Void of 16 bytes: the id of each document; `bytes(ids[i]).hex()` is the id in the Parquet files."""
        return np.concatenate([self._column(place, "ids", ID) for place in self.places])

    def _column(self, place: Place, kind: str, dtype: np.dtype, more: int = 0) -> np.ndarray:
        path = _checked(self.folder, place.shard, kind, (place.shard.documents + more) * dtype.itemsize)
        count = (place.run.documents + more) * dtype.itemsize
        return np.frombuffer(path.read_range(place.first_document * dtype.itemsize, count), dtype)


@dataclass(frozen=True)
class Store:
    """An open token store: the ledger, and a `Source` for each domain."""

    folder: Path
    ledger: Ledger

    @property
    def vocab(self) -> int:
        """Ids of the tokenizer; every token is below it."""
        return self.ledger.head.vocab

    @property
    def eos_id(self) -> int:
        """The id that follows each document."""
        return self.ledger.head.eos_id

    @property
    def tokens(self) -> int:
        """Tokens of all domains, end-of-document ids included."""
        return sum(shard.tokens for shard in self.ledger.shards)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains, sorted."""
        return tuple(sorted(self._places))

    def source(self, domain: str) -> Source:
        """The documents of one domain; InputError for a domain that the store does not have."""
        if domain not in self._places:
            raise InputError(f"{self.folder} has no domain {domain!r}. It has {', '.join(self.domains)}.")
        return Source(domain, self.folder, self.ledger.head.dtype, tuple(self._places[domain]))

    @cached_property
    def _places(self) -> dict[str, list[Place]]:
        places: dict[str, list[Place]] = {}
        for shard in self.ledger.shards:
            tokens = documents = 0
            for run in shard.runs:
                places.setdefault(run.domain, []).append(Place(shard, run, tokens, documents))
                tokens, documents = tokens + run.tokens, documents + run.documents
        return places


def open_store(folder: Path) -> Store:
    """Open a token store by its ledger alone; InputError when there is none or it is of another format."""
    file = folder / "ledger.json"
    data = file.read_if_present()
    if data is None:
        raise InputError(
            f"{folder} has no ledger.json, so it is no token store. Give one made by `tokenize`."
        )
    try:
        found = msgspec.json.decode(data, type=dict[str, Any]).get("format")
        if found != FORMAT:
            raise InputError(
                f"{file} has format {found}, and this lmlab reads format {FORMAT}, so its files could be "
                "misread. Tokenize again, or use the lmlab that wrote it."
            )
        return Store(folder, msgspec.json.decode(data, type=Ledger))
    except msgspec.DecodeError as error:
        raise InputError(f"{file} is not a ledger ({error}). Tokenize again.") from error


def verify(folder: Path, shards: Sequence[Shard]) -> None:
    """Hash every file of some shards; InputError names the first one that is not what was written."""
    for shard in shards:
        for kind, expected in shard.hashes.items():
            path, digest = folder / f"{shard.file}.{kind}", xxhash.xxh3_64()
            if not path.exists():
                raise InputError(f"{path} is missing, so the store is not whole. Tokenize again.")
            for block in path.chunks():
                digest.update(block)
            if digest.hexdigest() != expected:
                raise InputError(
                    f"{path} has xxh3 {digest.hexdigest()}, and the ledger says {expected}: it was changed, "
                    "or is another store's. Tokenize again."
                )


def _checked(folder: Path, shard: Shard, kind: str, expected: int) -> Path:
    """One file of a shard, its size held against the ledger."""
    path = folder / f"{shard.file}.{kind}"
    found = path.size() if path.exists() else None
    if found != expected:
        state = "is missing" if found is None else f"has {found:,} bytes"
        raise InputError(
            f"{path} {state}, and the ledger says {expected:,}, so the store is not whole. Tokenize again."
        )
    return path
