"""Corpora as pages show them: what each stage dropped and why, samples of both sides, and all domains ranked.

Read from what the stages wrote beside their documents (stages.json, rejected/<stage>/), never counted again.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from lmlab.artifacts import previews, query_engine
from lmlab.artifacts.catalog import Row, Snapshot
from lmlab.artifacts.query_engine import Limits, text
from lmlab.core.errors import InputError
from lmlab.storage import Path, read_json

STAGES = "stages.json"
SAMPLED_FILES = 8
"""A sample comes from so many files, chosen by its seed: a corpus may have thousands."""
SHOWN_CHARACTERS = 20_000


class Corpora:
    """Every artifact below a root that holds stages.json."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._thread: threading.Thread | None = None
        self._rows: tuple[str, list[dict[str, Any]]] = ("", [])

    def leaderboard(self, snapshot: Snapshot) -> dict[str, Any]:
        """Domains of all corpora by bytes; the last known ones while it is computed anew."""
        with self._lock:
            is_ready = self._rows[0] == snapshot.generation
            if not is_ready and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._compute, args=(snapshot,), daemon=True)
                self._thread.start()
            return {"state": "ready" if is_ready else "computing", "rows": self._rows[1]}

    def stages(self, row: Row) -> dict[str, Any]:
        """What every stage took in, let through and dropped, and what each domain ended with."""
        file = self._root / row.name / row.version / STAGES
        if not file.exists():
            raise InputError(f"{row.address} is no corpus: it has no {STAGES}.")
        told = read_json(file)
        names = previews.sizes(self._root, row)
        rejected = sorted({name.split("/")[1] for name in names if name.startswith("rejected/")})
        return {
            "address": row.address,
            "stages": told["stages"],
            "domains": told.get("domains", []),
            "rejected": rejected,
        }

    def samples(self, row: Row, asked: dict[str, str]) -> dict[str, Any]:
        """Documents drawn by `seed`: kept ones, or those that `stage` rejected; of one `domain`, `reason`."""
        kept = asked.get("kept", "0" if asked.get("stage") else "1") == "1"
        stage, seed, count = asked.get("stage", ""), asked.get("seed", "0"), int(asked.get("count") or 20)
        names = [name for name in previews.sizes(self._root, row) if name.endswith(".parquet")]
        chosen = [name for name in names if _is_part(name, stage, kept=kept)]
        if not chosen:
            return {"rows": []}
        drawn = sorted(random.Random(seed).sample(sorted(chosen), min(SAMPLED_FILES, len(chosen))))
        folder = self._root / row.name / row.version
        rows: list[dict[str, Any]] = []
        for name in drawn:
            rows += _draw(folder / name, asked, seed, count, kept=kept)
        rows.sort(key=lambda one: one.pop("rank"))
        return {"rows": rows[:count]}

    def _compute(self, snapshot: Snapshot) -> None:
        built = [row for row in snapshot.rows.values() if row.state == "built" and row.files]
        new = [row for row in built if row.mark not in self._known]
        with ThreadPoolExecutor(16) as pool:
            self._known |= dict(zip([row.mark for row in new], pool.map(self._domains, new), strict=True))
        rows = [domain for row in built for domain in self._known[row.mark]]
        rows.sort(key=lambda one: -one["bytes"])
        self._rows = snapshot.generation, rows

    def _domains(self, row: Row) -> list[dict[str, Any]]:
        data = (self._root / row.name / row.version / STAGES).read_if_present()
        if data is None:
            return []
        told = msgspec.json.decode(data)
        total = sum(domain["train_bytes"] for domain in told.get("domains", [])) or 1
        return [
            {
                "address": row.address,
                "domain": domain["domain"],
                "documents": domain["train_documents"],
                "bytes": domain["train_bytes"],
                "share": domain["train_bytes"] / total,
                "holdout_documents": domain["holdout_documents"],
                "holdout_bytes": domain["holdout_bytes"],
            }
            for domain in told.get("domains", [])
        ]


def _is_part(name: str, stage: str, *, kept: bool) -> bool:
    if not kept:
        return name.startswith(f"rejected/{stage}/" if stage else "rejected/")
    if stage == "holdout":
        return name.startswith("holdout/")
    return name.startswith("train/") or "/" not in name


def _draw(file: Path, asked: dict[str, str], seed: str, count: int, *, kept: bool) -> list[dict[str, Any]]:
    reason = "NULL" if kept else "reason"
    where = ["true"]
    if asked.get("domain"):
        where.append(f"meta->>'$.domain' = {text(asked['domain'])}")
    if asked.get("reason") and not kept:
        where.append(f"starts_with(reason, {text(asked['reason'])})")
    with query_engine.local_copy(file) as place:
        parts = f"read_parquet({text(str(place))}, hive_partitioning = false)"
        ranked = f"SELECT id, hash(id || {text(seed)}) AS rank FROM {parts} WHERE {' AND '.join(where)}"  # noqa: S608 - so
        source = (
            f"WITH drawn AS ({ranked} ORDER BY rank LIMIT {count}) "
            f"SELECT id, left(text, {SHOWN_CHARACTERS}) AS text, meta->>'$.domain' AS domain, "
            f"meta->>'$.language' AS language, {reason}::VARCHAR AS reason, "
            f"meta, strlen(text) AS bytes, drawn.rank FROM {parts} JOIN drawn USING (id)"
        )
        columns, rows = query_engine.rows(source, Limits(timeout_s=20), file=str(place), count=count)
    return [dict(zip([column.name for column in columns], row, strict=True)) for row in rows]
