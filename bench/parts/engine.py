"""The engine beside Zephyr: B1 reads, normalizes, writes; B2 also shuffles by id, drops repeats and sorts.

The input is about 260 MB of text in eight packed JSON-lines files, a tenth of it repeated. Both sides run the
same map function, with two workers, write the same Parquet schema, and are checked against a plain loop. The
peer is Zephyr (marin) inline in the interpreter that LMLAB_PEER_MARIN names, its best setting for one machine
(two workers in threads; one CPU-s less with one). Text comes from the folder LMLAB_BENCH_TEXT, else from the
archives of the quick start and this interpreter's library.
"""

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow.parquet as pq
import xxhash
import zstandard
from parts.cleaning import clean
from parts.measuring import Measured, measure

from lmlab.core import environ
from lmlab.corpus.archives import members
from lmlab.storage import Path as StoragePath

RUNS, SHARDS, PARTS = 3, 8, 8
TEXT_BYTES = 260_000_000
LONGEST_BYTES = 3_000_000
PEER = f"""
import re, sys
from typing import Any
import pyarrow as pa, xxhash
from zephyr.context import ZephyrContext
from zephyr.dataset import Dataset
from zephyr.runners import InlineRunner
_SPACE, _GAP = re.compile(r"\\s"), re.compile(r"\\s{{129,}}")
{getsource(clean)}
name, source, out, scratch = sys.argv[1:]
schema = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("source_id", pa.string())])
data = Dataset.from_files(source + "/*.jsonl.zst").load_jsonl().map(clean)
if name == "B2":
    data = data.group_by(lambda row: row["id"], reducer=lambda key, rows: next(rows),
                         sort_by=lambda row: row["source_id"], num_output_shards={PARTS})
data = data.write_parquet(out + "/part-{{shard:05d}}.parquet", schema=schema)
with ZephyrContext(max_workers=2, stage_runner_factory=InlineRunner, chunk_storage_prefix=scratch) as context:
    context.execute(data)
"""
OURS = "import sys; sys.path.insert(0, sys.argv[1]); from parts.cleaning import ours; ours(*sys.argv[2:])"


def figures() -> Iterator[dict[str, Any]]:
    """B1 and B2: CPU-seconds, peak memory of the whole tree and of the largest worker."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        size, wanted = write_input(folder / "in")
        for figure in ("B1", "B2"):
            yield _compared(figure, folder, wanted[figure]) | {"text_mb": size / 1e6}


def write_input(folder: Path) -> tuple[int, dict[str, str]]:
    """Write the shards; bytes of text, and the digest that each figure must end with, from a plain loop."""
    folder.mkdir()
    size, rows, first = 0, [], {}
    files = [zstandard.open(folder / f"part-{i}.jsonl.zst", "wb") for i in range(SHARDS)]
    for number, (name, text) in enumerate(texts()):
        size += len(text.encode())
        row = {"id": f"{name}#{number}", "text": text}
        files[number % SHARDS].write(orjson.dumps(row) + b"\n")
        made = re.sub(r"\s{129,}", lambda gap: gap[0][:128], text)
        key = xxhash.xxh3_128_hexdigest(made.encode())
        rows.append((row["id"], key))
        first[key] = min(first.get(key, row["id"]), row["id"])
    for file in files:
        file.close()
    return size, {"B1": _digest(rows), "B2": _digest([(source, key) for key, source in first.items()])}


def texts() -> Iterator[tuple[str, str]]:
    """Texts up to TEXT_BYTES: if there are too few, again, nine of ten with another first line."""
    size, copy = 0, 0
    while size < TEXT_BYTES:
        for number, (name, text) in enumerate(_found()):
            changed = f"copy {copy}\n{text}" if copy and number % 10 else text
            size += len(changed.encode())
            yield name, changed
            if size >= TEXT_BYTES:
                return
        copy += 1


def _found() -> Iterator[tuple[str, str]]:
    given = environ.get("LMLAB_BENCH_TEXT")
    for path in sorted(Path(given or sysconfig.get_paths()["stdlib"]).rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < LONGEST_BYTES:
            yield from _decoded(str(path), path.read_bytes())
    archives = environ.cache_dir() / "archives"
    for file in sorted(archives.glob("*/*")) if given is None else ():
        for name, data in members(StoragePath(file), ("*",)):
            yield from _decoded(name, data)


def _decoded(name: str, data: bytes) -> Iterator[tuple[str, str]]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if text.strip() and "\0" not in text and len(data) < LONGEST_BYTES:
        yield name, text


def _compared(name: str, folder: Path, wanted: str) -> dict[str, Any]:
    bench = str(Path(__file__).parents[1])
    python = environ.get("LMLAB_PEER_MARIN")
    source = str(folder / "in")
    mine, theirs, is_same = [], [], True
    for run in range(RUNS):
        out = folder / f"{name}-{run}"
        mine.append(measure([sys.executable, "-c", OURS, bench, name, source, f"{out}-ours", str(PARTS)]))
        is_same &= _digest_of(Path(f"{out}-ours"), name) == wanted
        if python is not None:
            theirs.append(measure([python, "-c", PEER, name, source, f"{out}-peer", f"{out}-scratch"]))
            is_same &= _digest_of(Path(f"{out}-peer"), name) == wanted
    cpu, peer = median(run.cpu_s for run in mine), median([run.cpu_s for run in theirs] or [0.0])
    memory = {
        f"peak_mb{side}": _largest(runs, "peak_mb") for side, runs in (("", mine), ("_peer", theirs)) if runs
    }
    return {
        "name": name,
        "ours": cpu,
        "peer": peer or None,
        "peer_name": "zephyr inline, 2 workers" if python else None,
        "ratio": peer / cpu if peer else None,
        "unit": "CPU-s",
        "better": "lower",
        "same_work": is_same,
        "runs": RUNS,
        "worker_mb": _largest(mine, "worker_mb"),
        **memory,
    }


def _largest(runs: list[Measured], field: str) -> float:
    return max(getattr(run, field) for run in runs)


def _digest_of(folder: Path, name: str) -> str:
    rows = []
    for path in sorted(folder.glob("part-*.parquet")):
        table = pq.read_table(path)
        ids = table["id"].to_pylist()
        assert name == "B1" or ids == sorted(ids)
        assert [xxhash.xxh3_128_hexdigest(text.encode()) for text in table["text"].to_pylist()] == ids
        rows += zip(table["source_id"].to_pylist(), ids, strict=True)
    return _digest(rows)


def _digest(rows: list[tuple[str, str]]) -> str:
    return f"{len(rows)}-{hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:16]}"
