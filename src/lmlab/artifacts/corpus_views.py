"""Corpora as pages show them: what each stage dropped and why, samples of both sides, and all domains ranked.

Read from what the stages wrote beside their documents (stages.json, rejected/<stage>/), never counted again.
"""

import random
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from lmlab.artifacts import query_engine as engine
from lmlab.artifacts.browsing import LIMITS, Answer, Asked, number, sizes
from lmlab.artifacts.catalog import Row, Snapshot
from lmlab.core.errors import InputError, LmlabError
from lmlab.storage import Path, read_json

STAGES, BUCKETS = "stages.json", "buckets.json"
SAMPLED_FILES = 8
"""A sample comes from so many files, chosen by its seed: a corpus may have thousands."""
SHOWN_CHARACTERS, COUNTED_BYTES = 20_000, 1 << 30
_DOMAIN = "(meta->>'$.domain')"


class _Domain(msgspec.Struct):
    """One row of the domains in stages.json."""

    domain: str
    train_documents: int
    train_bytes: int
    holdout_documents: int
    holdout_bytes: int


class _Stages(msgspec.Struct):
    """What of stages.json the ranking reads."""

    domains: list[_Domain] = []


def stages(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """What every stage took in, let through and dropped; each domain's end; topics by quality, if told."""
    row = snapshot.row(asked["address"])
    names = sizes(root, row)
    told: Answer = {"stages": [], "domains": [], "topics": []}
    files = [name for name in (STAGES, BUCKETS) if name in names]
    for name in files:
        told |= read_json(root / row.name / row.version / name)
    if not files:
        raise InputError(f"{row.address} is no corpus: it has neither {STAGES} nor {BUCKETS}.")
    rejected = sorted({name.split("/")[1] for name in names if name.startswith("rejected/")})
    made = (snapshot.rows.get(user) for user in snapshot.down(row.address, None))
    buckets = [
        user.address for user in made if user and user.state == "built" and user.result_type == "Buckets"
    ]
    return {**told, "address": row.address, "rejected": rejected, "buckets": buckets}


def samples(root: Path, snapshot: Snapshot, asked: Asked) -> Answer:
    """`count` documents drawn by `seed`: `kept` ones or rejected ones, of one `stage`, `domain`, `reason`."""
    row, stage, count = snapshot.row(asked["address"]), asked.get("stage", ""), number(asked, "count", 20)
    is_kept, seed = (asked.get("kept") or ("0" if stage else "1")) == "1", asked.get("seed", "0")
    # Stages after which documents are kept write train/ and holdout/, or parts beside stages.json.
    kept = ("holdout/",) if stage == "holdout" else ("train/", "part-")
    names = _parts(sizes(root, row), kept if is_kept else (f"rejected/{stage}/" if stage else "rejected/",))
    drawn = random.Random(seed).sample(names, min(SAMPLED_FILES, len(names)))
    if not drawn:
        return {"rows": []}
    where, rank = "true", f"hash(id || {engine.text(seed)})"
    if asked.get("domain"):
        where += f" AND {_DOMAIN} = {engine.text(asked['domain'])}"
    if asked.get("reason") and not is_kept:
        where += f" AND starts_with(reason, {engine.text(asked['reason'])})"
    columns = (
        f"id, left(text, {SHOWN_CHARACTERS}) AS text, {_DOMAIN} AS domain, meta->>'$.language' AS language, "
        f"{'NULL::VARCHAR' if is_kept else 'reason'} AS reason, meta, strlen(text) AS bytes"
    )
    with engine.at_hand([root / row.name / row.version / name for name in drawn]) as files:
        # Ids first: only the texts of what is drawn are read.
        ids = f"{engine.table(files)} SELECT id WHERE {where} ORDER BY {rank} LIMIT {count}"
        source = f"{engine.table(files)} SELECT {columns} WHERE id IN ({ids}) AND {where} ORDER BY {rank}"
        described, rows = engine.rows(source, files, 0, count, **LIMITS)
    return {"rows": [dict(zip([column["name"] for column in described], one, strict=True)) for one in rows]}


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
            domains = pool.map(lambda row: _known_domains(root, row), new)
            self._known |= dict(zip([row.mark for row in new], domains, strict=True))
        rows = [domain for row in built for domain in self._known[row.mark]]
        self._ready = snapshot.generation, sorted(rows, key=lambda domain: -domain["bytes"])


def _known_domains(root: Path, row: Row) -> list[Answer]:
    try:
        return _domains(root, row)
    except (LmlabError, msgspec.DecodeError):
        # Its own page says what is wrong with it; it must not hide the others.
        return []


def _domains(root: Path, row: Row) -> list[Answer]:
    data = (root / row.name / row.version / STAGES).read_if_present()
    domains = msgspec.json.decode(data, type=_Stages).domains if data else []
    rejected = _rejected(root, row) if domains else None
    total = sum(domain.train_bytes for domain in domains) or 1
    found = []
    for domain in domains:
        kept = domain.train_documents + domain.holdout_documents
        lost = rejected.get(domain.domain, 0) if rejected is not None else None
        found.append(
            {
                "address": row.address,
                "domain": domain.domain,
                "documents": domain.train_documents,
                "bytes": domain.train_bytes,
                "share": domain.train_bytes / total,
                "rejected": lost,
                "rejected_share": None if lost is None else lost / ((kept + lost) or 1),
                "holdout_documents": domain.holdout_documents,
                "holdout_bytes": domain.holdout_bytes,
            }
        )
    return found


def _rejected(root: Path, row: Row) -> dict[str | None, int] | None:
    """Documents that this artifact's stages rejected, by domain; None if they are too large."""
    found = sizes(root, row)
    names = _parts(found, ("rejected/",))
    if sum(found[name] for name in names) > COUNTED_BYTES:
        return None
    with engine.at_hand([root / row.name / row.version / name for name in names]) as files:
        source = f"{engine.table(files)} SELECT {_DOMAIN}, count(*) GROUP BY ALL"
        rows: list[Any] = engine.rows(source, files, 0, 10_000, **LIMITS)[1] if files else []
    return dict(rows)


def _parts(names: Iterable[str], folders: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if name.startswith(folders) and name.endswith(".parquet"))
