"""Near duplicates: MinHash bands propose clusters (`components`), shared word runs decide in them (`verify`).

Bands are attributes like others, 26 columns of 64 bits, so that a corpus is hashed once and then compared
with many. Every document of every corpus is a row of its own: equal texts in two corpora are two rows.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.corpus import kernels
from lmlab.corpus.attributes import Parts, Say, annotate, mark
from lmlab.corpus.characters import classes
from lmlab.corpus.components import Clusters, clusters, star_edges
from lmlab.corpus.config import Fuzzy
from lmlab.corpus.schema import DOCUMENTS, text_buffers
from lmlab.corpus.verify import DUPLICATES, Members, scatter_members, verify_bucket
from lmlab.dataflow.files import read_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path, read_json, write_json

LARGEST = 4096
"""Members of a cluster that are verified together; a larger one is cut into pieces of near neighbours."""
KEYS_AT_ONCE = 1 << 26
"""Band keys that one task sorts: 2 GB."""
SETTINGS = "minhash.json"


def band_keys(table: pa.Table, fuzzy: Fuzzy) -> np.ndarray:
    """uint64 [rows, bands]: an equal key in any column makes candidates; zeros for a text too short."""
    draw = np.random.default_rng(fuzzy.seed)
    factors, addends = draw.integers(0, 1 << 32, (2, fuzzy.perms), dtype=np.uint32)
    bands = np.zeros((table.num_rows, fuzzy.bands), np.uint64)
    # Odd factors make x -> factor * x + addend a permutation of the 32-bit numbers.
    kernels.minhash_bands(
        *text_buffers(table), classes(), factors | np.uint32(1), addends, fuzzy.ngram, fuzzy.cap, bands
    )
    return bands


def sign(documents: Path, out: Path, fuzzy: Fuzzy, runner: Runner, say: Say) -> int:
    """Write the band keys of all documents, and the settings that made them; how many documents."""
    keys = [pa.field(name, pa.uint64(), nullable=False) for name in _columns(fuzzy)]
    schema = pa.schema([DOCUMENTS.field("id"), *keys])
    write_json(out / SETTINGS, _hashing(fuzzy))
    return annotate(documents, out, banded, schema, runner, name="minhash", say=say, settings=fuzzy)


def banded(table: pa.Table, fuzzy: Fuzzy) -> pa.Table:
    """Ids and band keys of some documents."""
    keys = band_keys(table, fuzzy)
    columns = {name: keys[:, i] for i, name in enumerate(_columns(fuzzy))}
    return pa.table({"id": table.column("id"), **columns})


def mark_near_duplicates(
    corpora: Mapping[str, Path],
    signed: Mapping[str, Path],
    out: Path,
    fuzzy: Fuzzy,
    runner: Runner,
    say: Say,
) -> dict[str, Any]:
    """Say of every document which one it mostly repeats, if any; attributes go below `out`, by corpus.

    Returns the counts of `NearDuplicates`.
    """
    parts = Parts(corpora)
    total = int(parts.starts[-1])
    for name in corpora:
        if (made := read_json(signed[name] / SETTINGS)) != _hashing(fuzzy):
            raise InputError(
                f"The signatures in {signed[name]} were made with {made}, not {_hashing(fuzzy)}, so equal "
                "texts would not meet. Sign all corpora with the same settings."
            )
    if Parts({name: signed[name] for name in corpora}).starts.tolist() != parts.starts.tolist():
        raise InputError(
            f"The signatures are of other documents than the {total} given, so their rows do not fit. Sign "
            "these documents."
        )
    files = tuple(signed[corpus] / path.name for corpus, path in parts.places)
    at_once = max(1, KEYS_AT_ONCE // max(1, total))
    names = _columns(fuzzy)
    tasks = [names[i : i + at_once] for i in range(0, len(names), at_once)]
    said = partial(say, "finding candidates")
    edges = runner.run(partial(band_edges, files=files), tasks, name="link", progress=said)
    left, right = (np.concatenate([found[side] for found in edges]) for side in (0, 1))
    groups = clusters(total, left, right, LARGEST)
    found = _verified(parts, groups, out / ".work", fuzzy, runner, say)
    mark(parts, out, found.column("row").to_numpy(), _marks(parts, found), runner)
    return {
        "documents": total,
        "unsigned": edges[0][2],
        "candidates": len(groups.row),
        "clusters": len(groups.sizes),
        "largest": int(groups.sizes.max(initial=0)),
        "duplicates": found.num_rows,
        "converged": groups.converged,
    }


def band_edges(bands: Sequence[str], files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, int]:
    """Stars of rows that share a key in one of some bands; how many rows have none."""
    table = pa.concat_tables([read_parquet(file, bands) for file in files])
    keys = [table.column(band).to_numpy() for band in bands]
    left, right = (np.concatenate(side) for side in zip(*map(star_edges, keys), strict=True))
    return left, right, int((keys[0] == 0).sum())


def _verified(parts: Parts, groups: Clusters, work: Path, fuzzy: Fuzzy, runner: Runner, say: Say) -> pa.Table:
    """The confirmed duplicates, by row."""
    order = np.argsort(groups.row)
    rows, cluster = groups.row[order], groups.cluster[order]
    bucket = (np.cumsum(groups.sizes) // LARGEST)[cluster]
    buckets = int(bucket.max(initial=-1)) + 1
    tasks, first = [], 0
    for i, own in enumerate(parts.split(rows)):
        chosen = slice(first, first + len(own))
        if len(own):
            members = Members(own, int(parts.starts[i]), cluster[chosen], bucket[chosen])
            tasks.append((parts.paths[i], work / f"members-{i:05d}.arrow", members))
        first += len(own)
    bring = partial(scatter_members, buckets=buckets, words=fuzzy.words)
    runner.run(bring, tasks, name="verify", progress=partial(say, "reading candidates"))
    scattered = [scattered for _, scattered, _ in tasks]
    decide = partial(verify_bucket, scattered=scattered, buckets=buckets, containment=fuzzy.containment)
    said = partial(say, "comparing candidates")
    found = runner.run(decide, range(buckets), name="verify", progress=said)
    work.remove_tree()
    return pa.concat_tables([DUPLICATES.empty_table(), *found]).sort_by("row")


def _marks(parts: Parts, found: pa.Table) -> pa.Table:
    corpus = np.searchsorted(parts.starts, found.column("kept_row").to_numpy(), side="right") - 1
    ids = found.column("duplicate_of").to_pylist()
    tags = [parts.places[i][0] for i in corpus.tolist()]
    kept = [f"{tag}:{value}" if tag else value for tag, value in zip(tags, ids, strict=True)]
    shares = found.column("containment").to_pylist()
    reasons = [f"near duplicate: {s:.2f} of it is in {k}" for s, k in zip(shares, kept, strict=True)]
    found = found.drop_columns(["row", "kept_row", "duplicate_of"])
    found = found.add_column(0, "duplicate_of", pa.array(kept, pa.string()))
    return found.append_column("reason", pa.array(reasons, pa.string()))


def _columns(fuzzy: Fuzzy) -> tuple[str, ...]:
    return tuple(f"band_{i:03d}" for i in range(fuzzy.bands))


def _hashing(fuzzy: Fuzzy) -> dict[str, int]:
    """What must be equal for keys to be comparable."""
    return {name: getattr(fuzzy, name) for name in ("perms", "bands", "ngram", "cap", "seed", "version")}
