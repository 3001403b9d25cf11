"""A document as a sparse row of hashed words and runs of words: what classifier and embedding both see."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from lmlab.corpus.schema import load_text, parts_of, text_buffers
from lmlab.corpus.traits import kernels
from lmlab.corpus.traits.config import NGrams
from lmlab.storage import Path

CAP_BYTES = 1 << 20
"""Looked at from the start of a document: more changes no judgement, and a huge one would fill the memory."""
BATCH_BYTES = 8 << 20


def sample_of(documents: Path, count: int) -> pa.Table:
    """Ids and texts of about `count` documents: the first of some parts, since ids are hashes in order."""
    parts = spread(parts_of(documents))
    rows = -(-count // len(parts))
    # Copied: a slice would keep the whole part in memory.
    return pa.concat_tables(table.take(np.arange(min(rows, len(table)))) for table in map(load_text, parts))


def spread(parts: list[Path]) -> list[Path]:
    """At most 64 of the parts, evenly: a sample of a large corpus must not read all of it."""
    return parts[:: -(-len(parts) // 64)]


def batches(table: pa.Table) -> Iterator[pa.Table]:
    """Runs of rows with at most 8 MiB that are looked at, or one row: together the whole table."""
    looked_at = np.minimum(np.diff(text_buffers(table)[1]), CAP_BYTES)
    start, total = 0, 0
    for row, size in enumerate(looked_at.tolist()):
        if total and total + size > BATCH_BYTES:
            yield table.slice(start, row - start)
            start, total = row, 0
        total += size
    yield table.slice(start)


def hashed(table: pa.Table, ngrams: NGrams, *, names_only: bool = False) -> csr_matrix:
    """float32 [documents, buckets]: how often each feature stands in each document.

    `names_only` leaves out marks, numbers and what is shorter than three letters.
    """
    data, offsets = text_buffers(table)
    looked_at = int(np.minimum(np.diff(offsets), CAP_BYTES).sum())
    room = looked_at * (ngrams.words + (2 if ngrams.characters else 0)) + 1
    indices, counts = np.empty(room, np.int32), np.empty(room, np.float32)
    place = np.full(ngrams.buckets, -1, np.int64)
    settings = ngrams.words, ngrams.characters, CAP_BYTES, names_only
    ends = kernels.features(data, offsets, *settings, place, indices, counts)
    used = int(ends[-1]) if len(ends) else 0
    shape = (table.num_rows, ngrams.buckets)
    return csr_matrix((counts[:used].copy(), indices[:used].copy(), np.r_[0, ends]), shape=shape)
