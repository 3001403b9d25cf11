"""Nats of every document of a token store under a model, in batches of one shape.

A document is read as in training: the end-of-document id opens it, and attention never leaves it. All its
tokens are scored, each once; the end id that closes it is not, because it is no text. A document longer than
the model's sequence is read in windows that overlap, so that only its first tokens have a short past. Windows
of several documents share a row, told apart by segments.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from lmlab.models.config import Grug, Model
from lmlab.models.layers import Params
from lmlab.models.loss import Batch, token_losses
from lmlab.tokens.store import Source

BATCH_TOKENS = 4_096  # positions per call; more gains nothing on a CPU and holds more memory
OVERLAP = 4  # a later window repeats a quarter of the sequence as context

Score = Callable[[Batch], Float[np.ndarray, "batch seq"]]


class Window(NamedTuple):
    """`length` inputs from `start` of the stream [end id, tokens…]; the first `context` are not scored."""

    document: int
    start: int
    length: int
    context: int


@dataclass(frozen=True)
class Rows:
    """Windows laid out in rows; every array is [rows seq]. Segments are -1 in padding."""

    tokens: Int[np.ndarray, "rows seq"]
    targets: Int[np.ndarray, "rows seq"]
    segments: Int[np.ndarray, "rows seq"]
    documents: Int[np.ndarray, "rows seq"]
    """Whose token the target is; -1 where nothing is scored."""


def model_score(config: Model, params: Params, dtype: DTypeLike = jnp.bfloat16) -> Score:
    """The compiled function from a batch to the nats of its targets, 0 where the weight is 0.

    Experts get room for every token, as in serving: a domain's text crowds its favourite experts, and what
    training drops there would make a document's score depend on its neighbours in the batch.
    """
    if isinstance(config, Grug):
        config = replace(config, capacity_factor=config.experts / config.top_k)

    @jax.jit
    def nats(weights: Params, batch: Batch) -> Float[jax.Array, "batch seq"]:
        return token_losses(weights, config, batch, dtype=dtype)[0]

    weights = jax.device_put(params)
    return lambda batch: np.asarray(nats(weights, batch))


def score_source(
    score: Score,
    source: Source,
    *,
    eos_id: int,
    seq: int,
) -> Float[np.ndarray, " documents"]:
    """Nats of each document of one domain, summed in float64."""
    rows = lay_out(list(windows_of(source.offsets, seq)), np.asarray(source.tokens), eos_id=eos_id, seq=seq)
    nats = np.zeros(source.document_count, np.float64)
    batch_rows = max(1, BATCH_TOKENS // seq)
    for first in range(0, len(rows.tokens), batch_rows):
        piece = slice(first, first + batch_rows)
        documents = rows.documents[piece]
        found = score(_batch(rows, piece, batch_rows))[: len(documents)].astype(np.float64)
        is_scored = documents >= 0
        nats += np.bincount(documents[is_scored], weights=found[is_scored], minlength=len(nats))
    return nats


def windows_of(offsets: Int[np.ndarray, " borders"], seq: int) -> Iterator[Window]:
    """Cover every document's text tokens, each scored in exactly one window."""
    stride = seq - seq // OVERLAP
    for document, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        length = stop - start - 1  # the closing end id is no target
        done = min(length, seq)
        if done:
            yield Window(document, start, done, 0)
        while done < length:
            new = min(stride, length - done)
            yield Window(document, start + done + new - seq, seq, seq - new)
            done += new


def lay_out(windows: Sequence[Window], tokens: np.ndarray, *, eos_id: int, seq: int) -> Rows:
    """Put the windows into as few rows as best-fit finds, longest first."""
    stream = np.concatenate([[eos_id], tokens]).astype(np.int32)
    placed = best_fit([window.length for window in windows], seq)
    count = 1 + max((row for row, _ in placed), default=-1)
    inputs, targets = (np.zeros((count, seq), np.int32) for _ in range(2))
    segments, documents = (np.full((count, seq), -1, np.int32) for _ in range(2))
    for number, (window, (row, column)) in enumerate(zip(windows, placed, strict=True)):
        span = slice(column, column + window.length)
        inputs[row, span] = stream[window.start : window.start + window.length]
        targets[row, span] = stream[window.start + 1 : window.start + window.length + 1]
        segments[row, span] = number
        documents[row, column + window.context : column + window.length] = window.document
    return Rows(inputs, targets, segments, documents)


def best_fit(lengths: Sequence[int], seq: int) -> list[tuple[int, int]]:
    """(row, first column) for each length: longest first, each into the fullest row that still holds it."""
    placed = [(0, 0)] * len(lengths)
    gaps: list[tuple[int, int]] = []  # (free columns, row), ascending
    rows = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(gaps, (lengths[index], 0))
        if at == len(gaps):
            free, row = seq, rows
            rows += 1
        else:
            free, row = gaps.pop(at)
        placed[index] = (row, seq - free)
        if free > lengths[index]:
            insort(gaps, (free - lengths[index], row))
    return placed


def _batch(rows: Rows, piece: slice, batch_rows: int) -> Batch:
    """One piece of the rows, filled up with empty rows so that every call has the same shape."""
    missing = batch_rows - len(rows.tokens[piece])
    arrays = ((rows.tokens, 0), (rows.targets, 0), (rows.documents, -1), (rows.segments, -1))
    tokens, targets, documents, segments = (
        np.pad(array[piece], ((0, missing), (0, 0)), constant_values=fill) for array, fill in arrays
    )
    weights = (documents >= 0).astype(np.float32)
    return Batch(*(jnp.asarray(array) for array in (tokens, targets, weights, segments)))
