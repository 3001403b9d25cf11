"""Corpora as pages show them: what each stage dropped and why, samples of both sides, and all domains ranked.

Read from what the stages wrote beside their documents (stages.json, rejected/<stage>/), never counted again.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from lmlab.artifacts import query_engine as engine
from lmlab.artifacts.browsing import LIMITS, Answer, Asked, number, sizes
from lmlab.artifacts.catalog import Row, Snapshot
from lmlab.core.errors import InputError
from lmlab.storage import Path, read_json

STAGES = "stages.json"
SAMPLED_FILES = 8
"""A sample comes from so many files, chosen by its seed: a corpus may have thousands."""
SHOWN_CHARACTERS = 20_000


def stages(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """What every stage took in, let through and dropped, and what each domain ended with."""
    row = snapshot.row(asked["address"])
    names = sizes(root, row)
    if STAGES not in names:
        raise InputError(f"{row.address} is no corpus: it has no {STAGES}.")
    rejected = sorted({name.split("/")[1] for name in names if name.startswith("rejected/")})
    told = read_json(root / row.name / row.version / STAGES)
    return {"address": row.address, "domains": [], **told, "rejected": rejected}


def samples(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """`count` documents drawn by `seed`: `kept` ones or rejected ones, of one `stage`, `domain`, `reason`."""
    row, stage, count = snapshot.row(asked["address"]), asked.get("stage", ""), number(asked, "count", 20)
    kept, seed = asked.get("kept") or ("0" if stage else "1"), asked.get("seed", "0")
    # Stages after which documents are kept write train/ and holdout/, or parts beside stages.json.
    places = ("holdout/",) if stage == "holdout" else ("train/", "part-")
    wanted = (f"rejected/{stage}/" if stage else "rejected/",) if kept == "0" else places
    chosen = sorted(n for n in sizes(root, row) if n.startswith(wanted) and n.endswith(".parquet"))
    drawn = random.Random(seed).sample(chosen, min(SAMPLED_FILES, len(chosen)))
    found: list[dict[str, Any]] = []
    for name in drawn:
        found += _draw(root / row.name / row.version / name, asked, seed, count)
    found.sort(key=lambda document: document.pop("rank"))
    return {"rows": found[:count]}


class Leaderboard:
    """Domains of all corpora by bytes, computed in the background and anew when the catalog changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, list[Answer]] = {}
        self._thread: threading.Thread | None = None
        self._ready: tuple[str, list[Answer]] = ("", [])

    def __call__(self, root: Path, snapshot: Snapshot, _asked: Asked) -> Answer:
        """What is known; `state` says whether it is of this catalog."""
        with self._lock:
            is_ready = self._ready[0] == snapshot.generation
            if not is_ready and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._compute, args=(root, snapshot), daemon=True)
                self._thread.start()
            return {"state": "ready" if is_ready else "computing", "rows": self._ready[1]}

    def _compute(self, root: Path, snapshot: Snapshot) -> None:
        built = [row for row in snapshot.rows.values() if row.state == "built" and row.files]
        new = [row for row in built if row.mark not in self._known]
        with ThreadPoolExecutor(16) as pool:
            domains = pool.map(lambda row: _domains(root, row), new)
            self._known |= dict(zip([row.mark for row in new], domains, strict=True))
        rows = [domain for row in built for domain in self._known[row.mark]]
        self._ready = snapshot.generation, sorted(rows, key=lambda domain: -domain["bytes"])


def _domains(root: Path, row: Row) -> list[Answer]:
    data = (root / row.name / row.version / STAGES).read_if_present()
    told = msgspec.json.decode(data) if data else {}
    domains, stages = told.get("domains", []), told.get("stages", [])
    lost = sum(one["documents_in"] - one["documents_out"] for one in stages if one["stage"] != "holdout")
    total = sum(domain["train_bytes"] for domain in domains) or 1
    return [
        {
            "address": row.address,
            "domain": domain["domain"],
            "documents": domain["train_documents"],
            "bytes": domain["train_bytes"],
            "share": domain["train_bytes"] / total,
            "rejected_share": lost / (stages[0]["documents_in"] or 1) if stages else None,
            "holdout_documents": domain["holdout_documents"],
            "holdout_bytes": domain["holdout_bytes"],
        }
        for domain in domains
    ]


def _draw(file: Path, asked: Asked, seed: str, count: int) -> list[Answer]:
    """The `count` first documents of one file in an order that the seed gives; only their texts are read."""
    with engine.at_hand(file) as place:
        is_rejected = "/rejected/" in str(file)
        where = "true"
        if asked.get("domain"):
            where += f" AND (meta->>'$.domain') = {engine.text(asked['domain'])}"
        if asked.get("reason") and is_rejected:
            where += f" AND starts_with(reason, {engine.text(asked['reason'])})"
        rank = f"hash(id || {engine.text(seed)})"
        columns = (
            f"id, left(text, {SHOWN_CHARACTERS}) AS text, meta->>'$.domain' AS domain, "
            f"meta->>'$.language' AS language, {'reason' if is_rejected else 'NULL::VARCHAR'} AS reason, "
            f"meta, strlen(text) AS bytes, {rank} AS rank"
        )
        drawn = f"{engine.table(place)} SELECT id WHERE {where} ORDER BY {rank} LIMIT {count}"
        source = f"{engine.table(place)} SELECT {columns} WHERE id IN ({drawn}) AND {where}"
        described, rows = engine.rows(source, place, 0, count, **LIMITS)
    return [dict(zip([column["name"] for column in described], row, strict=True)) for row in rows]
