"""What a run reads: token stores cut into examples, drawn in an order that is a pure function of the seed.

A source is one domain of one store, read as a stream of documents and cut every `seq` tokens. The end
token opens a document (it is the first thing the model sees of it) and attention never crosses it, so
every position, the first token of a document included, is predicted from its own document alone.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import InputError
from lmlab.training import order

if TYPE_CHECKING:
    from lmlab.tokens.store import Store


PADDING = -1
"""The segment of positions that hold no text; they see nothing and take no expert's capacity."""


class Rows(NamedTuple):
    """A batch on the host; every array is [batch, seq]."""

    tokens: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[Any]
    """0 where the target is not trained on or scored."""
    segments: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Source:
    """One domain of one token store."""

    name: str
    """`store/domain`; part of the key of its order, so sources are shuffled differently."""
    tokens: Any
    """The stream, each document ended by its token: an array, or several shards that slice like one."""
    weight: float
    """Share in the mixture, relative to the other sources."""
    vocab: int
    """Every token must be below this."""
    eos_id: int
    """The end token."""

    def examples(self, seq: int) -> int:
        """How many whole sequences the stream holds; the last one needs a token after it."""
        return max(0, self.tokens.size - 1) // seq


def sources_of(stores: Mapping[str, "Store"], weights: Mapping[str, float], alpha: float) -> list[Source]:
    """The domains of the stores with their weights: a store's weight is spread over tokens ** alpha."""
    sources = []
    for name, store in stores.items():
        parts = {domain: store.source(domain) for domain in store.domains}
        if not parts:
            raise InputError(f"token store {name} is empty, so there is nothing to train on. Rebuild it.")
        total = sum(part.token_count**alpha for part in parts.values())
        sources += [
            Source(
                name=f"{name}/{domain}",
                tokens=part.tokens,
                weight=weights[name] * part.token_count**alpha / total,
                vocab=store.vocab,
                eos_id=store.eos_id,
            )
            for domain, part in parts.items()
        ]
    return sources


class Stream:
    """The batches of a run, by step. `batch(step)` depends on nothing but the arguments given here."""

    def __init__(self, sources: Sequence[Source], *, batch: int, seq: int, block: int, seed: int) -> None:
        self.sources, self.batch_size, self.seq, self.seed = tuple(sources), batch, seq, seed
        self.counts = order.exact_counts([source.weight for source in sources], block)
        for source, count in zip(sources, self.counts, strict=True):
            if count and not source.examples(seq):
                raise InputError(
                    f"source {source.name} has {source.tokens.size} tokens, too few for one sequence of "
                    f"{seq} and its next token. Give it more text, a weight of 0, or a smaller seq."
                )

    @property
    def unread(self) -> list[str]:
        """Sources whose weight is so small that no place in a block is theirs."""
        pairs = zip(self.sources, self.counts, strict=True)
        return [source.name for source, count in pairs if source.weight and not count]

    def batch(self, step: int) -> Rows:
        """The rows that step `step` (0-based) trains on."""
        stretches = self.stretches(step)
        tokens = np.stack([stretch for _, stretch in stretches]).astype(np.int32)
        ends = np.asarray([source.eos_id for source, _ in stretches])[:, None]
        inputs = tokens[:, :-1]
        segments = np.cumsum(inputs == ends, axis=1, dtype=np.int32)
        return Rows(inputs, tokens[:, 1:], np.ones(inputs.shape, np.float32), segments)

    def stretches(self, step: int) -> list[tuple[Source, NDArray[Any]]]:
        """The `seq + 1` tokens behind each row of a step, as they stand in the store."""
        index = np.arange(step * self.batch_size, (step + 1) * self.batch_size, dtype=np.int64)
        which, places = order.mixture(index, self.counts, order.key_of(self.seed, 0))
        return [self._stretch(self.sources[s], int(place)) for s, place in zip(which, places, strict=True)]

    def sequences(self, steps: int) -> dict[str, int]:
        """How many sequences of each source the first `steps` steps read: the whole state of the data."""
        total = steps * self.batch_size
        blocks, rest = divmod(total, sum(self.counts))
        index = np.arange(total - rest, total, dtype=np.int64)
        which, _ = order.mixture(index, self.counts, order.key_of(self.seed, 0))
        extra = np.bincount(which, minlength=len(self.counts))
        return {
            source.name: blocks * count + int(more)
            for source, count, more in zip(self.sources, self.counts, extra, strict=True)
        }

    def _stretch(self, source: Source, place: int) -> tuple[Source, NDArray[Any]]:
        key = order.key_of(self.seed, 1, zlib.crc32(source.name.encode()))
        example = order.block_shuffle(np.asarray([place]), source.examples(self.seq), key)
        start = int(example[0]) * self.seq
        tokens = source.tokens[start : start + self.seq + 1]
        if int(tokens.max()) >= source.vocab:
            where = start + int(tokens.argmax())
            raise InputError(
                f"source {source.name} has token {int(tokens.max())} at position {where}, but its vocabulary "
                f"ends at {source.vocab}. The store is damaged or was made by another tokenizer: rebuild it."
            )
        return source, tokens


def prefetched(stream: Stream, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
    """(step, rows) for steps [start, stop), the next one read by a thread while this one is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        upcoming = pool.submit(stream.batch, start) if start < stop else None
        for step in range(start, stop):
            assert upcoming is not None
            rows = upcoming.result()
            upcoming = pool.submit(stream.batch, step + 1) if step + 1 < stop else None
            yield step, rows


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A fixed piece of one domain's held-out text, in rows of the run's length."""

    domain: str
    rows: Rows
    """All documents end to end; the weight is 0 where the target is an end token or padding."""
    size_bytes: int
    """UTF-8 bytes of the scored text: whole documents."""
    batch: int
    """Rows that are scored together."""

    def batches(self) -> Iterator[Rows]:
        """The rows in batches of one shape; the last is filled up with rows of weight 0."""
        count = len(self.rows.tokens)
        for start in range(0, count, self.batch):
            taken = Rows(*(array[start : start + self.batch] for array in self.rows))
            missing = ((0, self.batch - len(taken.tokens)), (0, 0))
            segments = np.pad(taken.segments, missing, constant_values=PADDING)
            tokens, targets, weights = (np.pad(array, missing) for array in taken[:3])
            yield Rows(tokens, targets, weights, segments)


def held_out(store: "Store", seq: int, budget: int) -> list[HeldOut]:
    """For each domain the same documents at every reading: in stored order, those that still fit `budget`
    tokens; where none fits, the shortest one whole, because only whole documents have known bytes.
    """
    return [_held_out_domain(store, domain, seq, budget) for domain in store.domains]


def _held_out_domain(store: "Store", domain: str, seq: int, budget: int) -> HeldOut:
    part = store.source(domain)
    lengths = np.diff(part.offsets)
    if not lengths.size:
        raise InputError(f"the held-out text has no document of domain {domain}, so it can't be scored.")
    chosen, used = [], 0
    for document, length in enumerate(lengths):
        if used + int(length) <= budget:
            chosen.append(document)
            used += int(length)
    chosen = chosen or [int(np.argmin(lengths))]
    pieces = [part.tokens[part.offsets[d] : part.offsets[d + 1]] for d in chosen]
    text = np.concatenate([[store.eos_id], *pieces]).astype(np.int32)
    rows = -(-(text.size - 1) // seq)
    padded = np.full(rows * seq + 1, store.eos_id, np.int32)
    padded[: text.size] = text
    inputs, targets = padded[:-1].reshape(rows, seq), padded[1:].reshape(rows, seq)
    segments = np.cumsum(inputs == store.eos_id, axis=1, dtype=np.int32)
    segments.reshape(-1)[text.size - 1 :] = PADDING
    weights = (targets != store.eos_id).astype(np.float32)
    size_bytes = int(part.byte_counts[chosen].sum())
    return HeldOut(domain, Rows(inputs, targets, weights, segments), size_bytes, max(1, budget // seq))
