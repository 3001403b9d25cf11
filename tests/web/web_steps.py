"""The steps of the test lab, and the run that builds it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path as LocalPath

import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.artifacts import Artifact, Out, step
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.runner import execute
from lmlab.storage import Path

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
OLD, NEW = "2026.12.01", "2026.12.02"


@dataclass(frozen=True)
class Corpus(Artifact):
    documents: int
    note: str


@dataclass(frozen=True)
class Report(Artifact):
    headline: str
    file: str


@step(inline=True)
def source(out: Out, rows: int) -> Artifact:
    lines = [json.dumps({"id": i, "text": f"row {i} {HOSTILE}"}) for i in range(rows)]
    (out.path / "rows.jsonl").write_text("\n".join(lines))
    return Artifact()


@step(inline=True)
def curate(out: Out, raw: Artifact, keep: float = 0.5) -> Corpus:
    print("kept", keep, HOSTILE)  # noqa: T201 - goes to the log
    texts = [f"document {i} {HOSTILE}" for i in range(40)]
    documents(out.path / "train", texts, [""] * 40)
    documents(out.path / "rejected" / "exact", texts[:6], [f"exact duplicate: of {HOSTILE}"] * 6)
    stage = {"stage": "exact", "documents_in": 46, "documents_out": 40, "bytes_in": 4600, "bytes_out": 4000}
    domain = {"domain": "prose", "train_documents": 40, "train_bytes": 4000}
    stages = [stage | {"dropped": {"exact duplicate": 6}}]
    domains = [domain | {"holdout_documents": 0, "holdout_bytes": 0}]
    (out.path / "stages.json").write_text(json.dumps({"stages": stages, "domains": domains}))
    return Corpus(40, HOSTILE)


@dataclass(frozen=True)
class Buckets(Artifact):
    documents: int


@step(inline=True)
def buckets(out: Out, corpus: Artifact) -> Buckets:
    quantiles = [
        {"lower": 0.0, "upper": 0.4, "documents": 31, "bytes": 3100},
        {"lower": 0.4, "upper": 1.0, "documents": 9, "bytes": 900},
    ]
    topic = {"topic": 0, "words": ["harbour", HOSTILE], "documents": 40, "bytes": 4000}
    (out.path / "buckets.json").write_text(json.dumps({"topics": [topic | {"quantiles": quantiles}]}))
    return Buckets(40)


@step(inline=True)
def summarize(out: Out, corpus: Artifact, title: str) -> Report:
    (out.path / "report.html").write_text(
        f"<!doctype html><style>h1 {{ color: rgb(1, 2, 3) }}</style><h1>{title}</h1>{HOSTILE}"
        f'<a href="../../../web/corpus/{NEW}/">its corpus</a>'
    )
    return Report(f"{title} {HOSTILE}", "report.html")


@step(inline=True)
def breaks(out: Out, corpus: Artifact) -> Artifact:
    raise ValueError(f"can't go on {HOSTILE}")


def documents(folder: Path, texts: list[str], reasons: list[str]) -> None:
    count = len(texts)
    table = {
        "id": [f"{i:032x}" for i in range(count)],
        "text": pa.array(texts, pa.large_string()),
        "source_id": ["s"] * count,
        "meta": [json.dumps({"domain": "prose", "language": "en"})] * count,
        "reason": reasons,
    }
    with (folder / "part-00000-of-00001.parquet").writer() as temporary:
        pq.write_table(pa.table(table), temporary)


def build_lab(place: LocalPath) -> None:
    """Two versions of a chain of three steps, one of which fails; the input of the older one is gone."""
    root = Path(str(place))
    for version, keep in ((OLD, 0.5), (NEW, 0.25)):
        corpus = curate("web/corpus", source("web/source", 50), keep)
        targets = [summarize("web/report", corpus, "What the corpus says"), breaks("web/broken", corpus)]
        targets.append(buckets("web/buckets", corpus))
        execute(make_plan(collect(targets, Versions(version)), root), root)
    shutil.rmtree(place / "web" / "source" / OLD)
