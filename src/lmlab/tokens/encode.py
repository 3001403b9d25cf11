"""Encode documents in bounded batches, long ones in pieces that join exactly.

Whoever encodes a piece gives the ids of `tokenizers`, so the result depends on the text alone.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from lmlab.tokens.fast import Encoder, Ids
from lmlab.tokens.pieces import PIECE_CHARS

BATCH_PIECES, BATCH_BYTES = 1_024, 400_000  # encoded at once: a document of 64 MB needs no more memory


def encode_documents(encoder: Encoder, documents: Iterable[bytes]) -> Iterator[Ids]:
    """The ids of each document in order, equal to those of the whole text. `documents` are UTF-8."""
    parts: list[Ids] = []
    for ids, is_last in encode_pieces(encoder, documents):
        parts.append(ids)
        if is_last:
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)
            parts = []


def encode_pieces(
    encoder: Encoder, documents: Iterable[bytes], piece_chars: int = PIECE_CHARS
) -> Iterator[tuple[Ids, bool]]:
    """The same in pieces that need not be joined in memory; True comes with the last one of a document."""
    batch: list[bytes] = []
    is_last: list[bool] = []
    size = 0
    for document in documents:
        left = len(document)
        for piece in encoder.cutter.pieces(document, piece_chars):
            left -= len(piece)
            batch.append(piece)
            is_last.append(left == 0)
            size += len(piece)
            if len(batch) >= BATCH_PIECES or size >= BATCH_BYTES:
                yield from zip(encoder(batch), is_last, strict=True)
                batch, is_last, size = [], [], 0
    yield from zip(encoder(batch), is_last, strict=True)
