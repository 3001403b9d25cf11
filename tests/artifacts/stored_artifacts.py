"""Artifacts written straight into a root, record last, so that a test can have any graph of them at once."""

import io
import time
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.artifacts import claims, records
from lmlab.artifacts.records import Input, Record
from lmlab.core.provenance import Provenance
from lmlab.storage import Path

VERSION = "2026.12.01"
ORIGIN = Provenance("c0ffee", "tree", True, "main", ("lmlab", "run", "x.py"), "ada", "engine", "3.11", 0.0)


def store(
    root: Path,
    name: str,
    files: Mapping[str, bytes] | None = None,
    inputs: Sequence[str] = (),
    after: Sequence[str] = (),
    result: Mapping[str, object] | None = None,
    kind: str = "Artifact",
    source: str | None = None,
    epoch: str = "1",
) -> str:
    """One built artifact (adopted, if it has a source); gives its address."""
    name, _, version = name.partition("@")
    version = version or VERSION
    folder = root / name / version
    for file, data in (files or {}).items():
        (folder / file).write_bytes(data)
    record = Record(
        schema=records.SCHEMA,
        name=name,
        version=version,
        step="make",
        fingerprint="0" * 16,
        config={"type": "make", "inputs": list(inputs)},
        inputs=tuple(Input(a.partition("@")[0], a.partition("@")[2], "0" * 16, "1") for a in inputs),
        after=tuple(after),
        result_type=kind,
        result={"type": kind, **(result or {})},
        source=source,
        files=records.seal(folder) if files else records.Files(0, 0, None),
        provenance=ORIGIN,
        source_digest="",
        started=1.0,
        finished=3.5,
        attempt=1,
        epoch=epoch,
    )
    (folder / records.RECORD).write_bytes(msgspec.json.encode(record))
    return record.address


def claim(root: Path, name: str, config: Mapping[str, object] | None = None, **beat: object) -> Path:
    """An attempt by a process of another machine that has not committed; gives the beat's file."""
    folder = root / name / VERSION
    owner = {"token": "t", "host": "elsewhere", "scope": "boot", "pid": 1, "started_ticks": 1, "run": "r"}
    owner |= {"config": {"type": "make", **(config or {})}, "at": time.time()}
    claims.claim_path(folder, 1, "claim").write_bytes(msgspec.json.encode(owner))
    place = claims.claim_path(folder, 1, "beat")
    place.write_bytes(msgspec.json.encode({"counter": 1, **beat}))
    return place


def parquet(**columns: object) -> bytes:
    """A table as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def corpus(root: Path, name: str, documents: int = 40) -> str:
    """What curation leaves: kept and rejected documents of two domains, and stages.json."""

    def part(ids: range, reason: str | None = None) -> bytes:
        domains = ["code" if i % 4 == 0 else "prose" for i in ids]
        meta = [f'{{"domain":"{domain}","language":"en"}}' for domain in domains]
        columns = {"id": [f"{i:032x}" for i in ids], "text": [f"document {i}" for i in ids]}
        columns |= {"source_id": [f"s{i}" for i in ids], "meta": meta}
        return parquet(**columns, **({"reason": [f"{reason}: {i}" for i in ids]} if reason else {}))

    half = documents // 2
    stages = [
        {"stage": "exact", "documents_in": 45, "documents_out": 43, "bytes_in": 450, "bytes_out": 430},
        {"stage": "fuzzy", "documents_in": 43, "documents_out": 40, "bytes_in": 430, "bytes_out": 400},
    ]
    drops = ({"exact duplicate": 2}, {"near duplicate": 3})
    domains = [
        {"domain": d, "train_documents": n, "train_bytes": n * 10, "holdout_documents": 1, "holdout_bytes": 9}
        for d, n in (("code", documents // 4), ("prose", documents - documents // 4))
    ]
    told = {
        "stages": [{**s, "dropped": d} for s, d in zip(stages, drops, strict=True)],
        "domains": domains,
    }
    files = {
        "train/part-00000-of-00002.parquet": part(range(half)),
        "train/part-00001-of-00002.parquet": part(range(half, documents)),
        "rejected/exact/part-00000-of-00002.parquet": part(range(100, 102), "exact duplicate"),
        "rejected/fuzzy/part-00001-of-00002.parquet": part(range(200, 203), "near duplicate"),
        "stages.json": msgspec.json.encode(told),
    }
    return store(root, name, files, kind="Corpus", result={"documents": documents})
