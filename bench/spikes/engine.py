"""The spike before docs/decisions/0004-engine.md: group_by with one key that has 90 % of the bytes.

Our file shuffle as Ray core tasks, Ray Data's hash shuffle and Daft, each on a fresh Ray cluster of two nodes
on this machine (two logical cores each), and ours and Daft without Ray. What is grouped is digested in the
order of its ids, so that equal digests mean equal work. CPU is that of all processes, the cluster's upkeep
meanwhile included; memory is what is not shared, so not Ray's object store.
`bench/spikes/engine.py [MB [ENGINE …]]` prints the table; peers run in the interpreter of LMLAB_PEER_DATA.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.core import environ

HERE = Path(__file__).parent
TIMEOUT_S = 420
FILES, HOT_SHARE, DOCUMENT_BYTES, SHARDS = 8, 0.9, 4_000, 8
STORE_BYTES = 2_000_000_000
UPKEEP = ("raylet", "gcs_server", "monitor", "dashboard", "DashboardAgent", "RuntimeEnvAgent", "ray start")

PEER = """
import hashlib, json, sys
import pyarrow as pa
how, address, folder = sys.argv[1:4]

def digest(table):
    table = table.sort_by("id")
    found = hashlib.sha256()
    for id, text in zip(table.column("id").to_pylist(), table.column("text").to_pylist()):
        found.update(id.encode()); found.update(text.encode())
    return table.column("key")[0].as_py(), table.num_rows, found.hexdigest()

if how == "ray data":
    import ray
    ray.init(address, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.HASH_SHUFFLE
    context.default_hash_shuffle_parallelism = 8
    def one(table):
        return pa.table({name: [value] for name, value in zip(("key", "rows", "digest"), digest(table))})
    grouped = ray.data.read_parquet(folder).groupby("key", num_partitions=8)
    found = grouped.map_groups(one, batch_format="pyarrow").take_all()
    rows = [(row["key"], row["rows"], row["digest"]) for row in found]
else:
    import daft
    from daft import DataType, col
    if how == "daft on ray":
        daft.set_runner_ray(address)
    else:
        daft.set_runner_native()
    kind = DataType.struct({"rows": DataType.int64(), "digest": DataType.string()})
    @daft.udf(return_dtype=kind)
    def one(key, id, text):
        table = pa.table({"key": key.to_arrow(), "id": id.to_arrow(), "text": text.to_arrow()})
        _, rows, found = digest(table)
        return [{"rows": rows, "digest": found}]
    grouped = daft.read_parquet(folder + "/*.parquet").groupby("key").map_groups(
        one(col("key"), col("id"), col("text")).alias("made"))
    found = grouped.to_pydict()
    rows = [(key, made["rows"], made["digest"]) for key, made in zip(found["key"], found["made"])]
print(json.dumps(sorted(rows)))
"""


def main() -> None:
    """Run all five and print a Markdown table."""
    size_mb = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    peer = environ.get("LMLAB_PEER_DATA")
    print("| engine | finished | CPU-s | largest worker MB | all workers MB | wall s | same digest |")
    print("|---|---|---:|---:|---:|---:|---|")
    with TemporaryDirectory() as folder:
        write(Path(folder), size_mb)
        truth = reference(Path(folder))
        engines = [("ours on ray", sys.executable), ("ours on processes", sys.executable)]
        engines += [(name, peer) for name in ("ray data", "daft on ray", "daft native") if peer]
        for name, interpreter in [each for each in engines if each[0] in (sys.argv[2:] or dict(engines))]:
            print(row(name, Path(interpreter), folder, truth), flush=True)


def write(folder: Path, size_mb: int) -> None:
    """Parquet files of documents of about 4 kB; one key has 90 % of them, a thousand share the rest."""
    random = np.random.default_rng(7)
    words = np.array(["".join(letters) for letters in random.choice(list("abcdefghij klmnop"), (20_000, 6))])
    count = size_mb * 1_000_000 // DOCUMENT_BYTES
    for index in range(FILES):
        rows = range(index, count, FILES)
        keys = ["hot" if random.random() < HOT_SHARE else f"key-{random.integers(1000)}" for _ in rows]
        texts = [" ".join(random.choice(words, DOCUMENT_BYTES // 7)) for _ in rows]
        ids = [hashlib.sha256(str(row).encode()).hexdigest()[:32] for row in rows]
        table = pa.table({"id": ids, "key": keys, "text": pa.array(texts, pa.large_string())})
        pq.write_table(table, folder / f"part-{index}.parquet", compression="zstd", row_group_size=1000)


def reference(folder: Path) -> list[Any]:
    """What every engine must find, by one process."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]).sort_by("id")
    groups: dict[str, list[Any]] = {}
    columns = [table.column(name).to_pylist() for name in ("key", "id", "text")]
    for key, number, text in zip(*columns, strict=True):
        group = groups.setdefault(key, [0, hashlib.sha256()])
        group[0] += 1
        group[1].update(number.encode())
        group[1].update(text.encode())
    return sorted([key, rows, found.hexdigest()] for key, (rows, found) in groups.items())


def row(name: str, interpreter: Path, folder: str, truth: list[Any]) -> str:
    """One engine, measured."""
    with TemporaryDirectory() as out, _place(name, interpreter) as (address, nodes):
        if name.startswith("ours"):
            argv = [interpreter, "-c", "import engine; engine.ours()", address, folder, out]
        else:
            argv = [interpreter, "-c", PEER, name, address, folder]
        environment = environ.child_environment(RAY_ADDRESS=address, PYTHONPATH=str(HERE))
        started = time.monotonic()
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE) as driver:
            watch = _Watch([driver.pid, *nodes])
            try:
                told, _ = driver.communicate(timeout=TIMEOUT_S)
                ending = "yes" if driver.returncode == 0 else f"no: exit code {driver.returncode}"
            except subprocess.TimeoutExpired:
                driver.kill()
                told, ending = "", f"no: stopped after {TIMEOUT_S} s"
            watch.stop()
        lines = [line for line in told.splitlines() if line.startswith("[[")]
        is_same = bool(lines) and json.loads(lines[-1]) == truth
    cells = [name, ending, f"{watch.cpu_s:.1f}", f"{watch.worker_mb:.0f}", f"{watch.all_mb:.0f}"]
    return f"| {' | '.join(cells)} | {time.monotonic() - started:.0f} | {'yes' if is_same else 'no'} |"


def ours() -> None:
    """The driver of our engine; this module is imported, not run, so that workers find `digest`."""
    from lmlab.dataflow import Dataset

    address, folder, out = sys.argv[1:4]
    grouped = Dataset.files(f"{folder}/*.parquet").group_by("key", digest, sort="id", shards=SHARDS)
    result = grouped.write_jsonl(f"{out}/{{shard}}.jsonl").run(on="ray" if address else "local", workers=2)
    rows = [json.loads(line) for path in result.outputs for line in path.read_text().splitlines()]
    print(json.dumps(sorted([each["key"], each["rows"], each["digest"]] for each in rows)))


def digest(key: str, records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The documents of one key, in the order of their ids."""
    rows, found = 0, hashlib.sha256()
    for record in records:
        rows += 1
        found.update(record["id"].encode())
        found.update(record["text"].encode())
    return {"key": key, "rows": rows, "digest": found.hexdigest()}


@contextlib.contextmanager
def _place(name: str, interpreter: Path) -> Generator[tuple[str, list[int]]]:
    """A fresh cluster of two nodes, or none."""
    if name in ("ours on processes", "daft native"):
        yield "", []
        return
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    from services.ray_cluster import Cluster

    cluster = Cluster(store_bytes=STORE_BYTES, interpreter=interpreter, has_clients=False)
    try:
        cluster.start_head()
        cluster.start_node()
        time.sleep(5)
        yield cluster.address, [node.pid for node in cluster.nodes]
    finally:
        cluster.stop()


class _Watch:
    """CPU and memory of process trees, looked at ten times a second."""

    def __init__(self, roots: list[int]) -> None:
        self._roots = [psutil.Process(pid) for pid in roots]
        self._used_s: dict[int, float] = {}
        self._before_s = 0.0
        self.worker_mb = self.all_mb = 0.0
        self._look()
        self._before_s = sum(self._used_s.values())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        return sum(self._used_s.values()) - self._before_s

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> None:
        together = 0.0
        for process in [each for root in self._roots for each in _tree(root)]:
            with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                self._used_s[process.pid] = times.user + times.system
                if not any(word in " ".join(process.cmdline()) for word in UPKEEP):
                    own_mb = (memory.rss - memory.shared) / 1e6
                    self.worker_mb, together = max(self.worker_mb, own_mb), together + own_mb
        self.all_mb = max(self.all_mb, together)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()
