"""Marin's connected components (Zephyr, one worker in its process), for bench/parts/minhash.py.

Takes a .npy file of band keys, one row a node; prints one line of JSON. Node ids are integers, so the hashes
of dupekit, which its module imports, are never asked for.
"""

import json
import logging
import os
import resource
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

os.environ.setdefault("ZEPHYR_MAX_WORKERS", "1")
sys.modules.setdefault("dupekit", types.ModuleType("dupekit"))
logging.disable(logging.CRITICAL)

from marin.processing.classification.deduplication.connected_components import (  # noqa: E402 - after the stand-in above
    connected_components,
)
from zephyr.context import ZephyrContext  # noqa: E402 - after the stand-in above
from zephyr.dataset import Dataset  # noqa: E402 - after the stand-in above


def _used_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Run once and print CPU seconds, whether it converged, and how many components there are."""
    keys = np.load(sys.argv[1])
    bands, nodes = np.meshgrid(np.arange(keys.shape[1]), np.arange(keys.shape[0]))
    buckets = [f"{band}-{key}" for band, key in zip(bands.ravel(), keys.ravel(), strict=True)]
    with TemporaryDirectory() as folder:
        links = Path(folder) / "links.parquet"
        table = {"bucket": buckets, "id": nodes.ravel(), "file_idx": np.zeros(len(buckets), int)}
        pq.write_table(pa.table(table), links)
        started_s = _used_s()
        context = ZephyrContext(max_workers=1, chunk_storage_prefix=f"{folder}/chunks")
        rows = Dataset.from_list([str(links)]).load_parquet()
        converged, paths = connected_components(rows, context, output_dir=f"{folder}/out")
        cpu_s = _used_s() - started_s
        labels = {value for path in paths for value in pq.read_table(path)["component_id"].to_pylist()}
    print(json.dumps({"cpu_s": cpu_s, "converged": converged, "components": len(labels)}))


if __name__ == "__main__":
    main()
