"""Lexical embeddings: hashed tf-idf, projected on the directions in which a sample of documents differs most.

The projection (latent semantic analysis) is fitted once and kept, so that later documents land in the same
space. Rotations don't change an angle, so any basis of those directions will do.
"""

from functools import cache

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix, vstack

from lmlab.core.errors import InputError
from lmlab.corpus.traits import kernels
from lmlab.corpus.traits.config import NGrams
from lmlab.corpus.traits.features import batches, hashed, sample_of
from lmlab.storage import Path

WORDS = NGrams(words=1, buckets=1 << 16)
PROJECTION = "projection.safetensors"
_ROUNDS = 3
"""Of subspace iteration; a fourth changes no topic of the quick start."""


def embeddings(dims: int) -> pa.Schema:
    """The schema: float16 vectors of length one (of zeros for a text without known words)."""
    vector = pa.list_(pa.field("item", pa.float16(), nullable=False), dims)
    return pa.schema([("id", pa.string()), pa.field("embedding", vector, nullable=False)])


def fit(out: Path, dims: int, sample: int, seed: int, documents: Path) -> None:
    """Write the projection: float16 [buckets, dims], the weight of each bucket in it."""
    from safetensors.numpy import save

    table = sample_of(documents, sample).combine_chunks()
    counts = csr_matrix(vstack([hashed(batch, WORDS, names_only=True) for batch in batches(table)]))
    frequency = np.bincount(counts.indices, minlength=WORDS.buckets)
    known = np.flatnonzero(frequency > 1)
    if min(table.num_rows, len(known)) < dims:
        raise InputError(
            f"{documents} has {table.num_rows} documents with {len(known)} words in common, too few "
            f"to find {dims} directions in which they differ. Choose fewer dims, or a larger corpus."
        )
    weights = np.log((1 + table.num_rows) / (1 + frequency[known])).astype(np.float32)
    rows = csr_matrix(counts[:, known])
    rows.data = np.log1p(rows.data) * weights[rows.indices]
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    rows.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))
    basis = np.random.default_rng(seed).standard_normal((dims, len(known)), np.float32)
    for _ in range(_ROUNDS):
        basis = np.ascontiguousarray((rows.T @ (rows @ basis.T)).T)
        kernels.orthonormal(basis)
    projection = np.zeros((WORDS.buckets, dims), np.float16)
    projection[known] = basis.T * weights[:, None]
    (out / PROJECTION).write_bytes(save({"projection": projection}))


def embed(table: pa.Table, folder: Path) -> pa.Table:
    """The annotation: the embedding of each document by the projection in `folder`."""
    projection, found = load(folder), []
    for batch in batches(table):
        counts = hashed(batch, WORDS, names_only=True)
        counts.data = np.log1p(counts.data)
        found.append(counts @ projection)
    vectors = np.concatenate(found)
    lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    unit = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float16)
    schema = embeddings(vectors.shape[1])
    column = pa.FixedSizeListArray.from_arrays(pa.array(unit.reshape(-1)), type=schema.types[1])
    return pa.table([table.column("id"), column], schema=schema)


def vectors_of(table: pa.Table) -> np.ndarray:
    """float32 [documents, dims] of an attribute that `embed` made."""
    column = table.column("embedding")
    flat = pa.concat_arrays([chunk.flatten() for chunk in column.chunks]) if column.num_chunks else column
    return flat.to_numpy().reshape(-1, column.type.list_size).astype(np.float32)


@cache
def load(folder: Path) -> np.ndarray:
    """float32 [buckets, dims]: the projection that `fit` wrote."""
    from safetensors.numpy import load as read

    return read((folder / PROJECTION).read_bytes())["projection"].astype(np.float32)
