"""Encode documents: in bounded batches, on several threads, long documents in pieces that join exactly.

Batches of one tokenizer give the same ids whoever encodes them, so the result depends on the text alone.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lmlab.tokens.fast import FastEncoder

Ids = NDArray[np.uint32]
Encoder = Callable[[Sequence[bytes]], list[Ids]]  # pieces of UTF-8 to their ids; called from several threads

PIECE_CHARS = 10_000  # a longer document is cut here or at the next safe point
BATCH_PIECES, BATCH_BYTES = (
    1_024,
    400_000,
)  # what is encoded at once: a document of 64 MB needs no more memory

# Between a visible character and one space before a visible one every GPT-like pattern (GPT-2 to o200k, ours)
# has a token border, whatever stands further left or right, so the pieces' ids join to the whole text's ids.
SAFE_POINT = re.compile(r"(?<=\S)(?= \S)")


def encoder_of(tokenizer: tokenizers.Tokenizer) -> Encoder:
    """The fastest encoder that gives exactly the tokenizer's ids: compiled for ours, else the library's."""
    return FastEncoder(tokenizer) if FastEncoder.fits(tokenizer) else library_encoder(tokenizer)


def library_encoder(tokenizer: tokenizers.Tokenizer) -> Encoder:
    """`tokenizers` itself."""

    def encode(pieces: Sequence[bytes]) -> list[Ids]:
        texts = [piece.decode() for piece in pieces]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encoded]

    return encode


def encode_documents(encode: Encoder, documents: Iterable[bytes], workers: int = 1) -> Iterator[Ids]:
    """The ids of each document in order, equal to those of the whole text, with bounded memory.

    `documents` are UTF-8 and are read by the calling thread, at most `workers + 1` batches ahead.
    """
    parts: list[Ids] = []
    for batch, encoded in _in_threads(encode, _batches(documents), workers):
        for ids, is_last in zip(encoded, batch.is_last, strict=True):
            parts.append(ids)
            if is_last:
                yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                parts = []


def safe_pieces(document: bytes, piece_chars: int = PIECE_CHARS) -> Iterator[bytes]:
    """Cut a text at safe points into pieces of about `piece_chars`; text without one stays whole."""
    if len(document) <= piece_chars:
        yield document
        return
    text, start = document.decode(), 0
    while cut := SAFE_POINT.search(text, start + piece_chars):
        yield text[start : cut.start()].encode()
        start = cut.start()
    yield text[start:].encode()


class _Batch(NamedTuple):
    pieces: list[bytes]
    is_last: list[bool]
    """Whether a piece ends its document."""


def _batches(documents: Iterable[bytes]) -> Iterator[_Batch]:
    batch, size = _Batch([], []), 0
    for document in documents:
        left = len(document)
        for piece in safe_pieces(document):
            left -= len(piece)
            batch.pieces.append(piece)
            batch.is_last.append(left == 0)
            size += len(piece)
            if len(batch.pieces) >= BATCH_PIECES or size >= BATCH_BYTES:
                yield batch
                batch, size = _Batch([], []), 0
    if batch.pieces:
        yield batch


def _in_threads(
    encode: Encoder, batches: Iterator[_Batch], workers: int
) -> Iterator[tuple[_Batch, list[Ids]]]:
    """Each batch with its ids, in order."""
    running: deque[tuple[_Batch, Future[list[Ids]]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        for batch in batches:
            running.append((batch, pool.submit(encode, batch.pieces)))
            if len(running) > workers:
                done, future = running.popleft()
                yield done, future.result()
        for done, future in running:
            yield done, future.result()
