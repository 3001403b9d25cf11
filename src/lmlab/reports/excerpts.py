"""The beginnings of kept and rejected documents, cut and cleaned so that no text can break a page."""

import json
import re

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lmlab.core.errors import ArtifactError
from lmlab.storage import Path

CHARACTERS, LINES = 320, 7
KEPT, PER_STAGE = 8, 3
ROWS_LOOKED_AT = 512

# Controls, lone surrogates, and marks that reorder text beyond their own line; tab and newline stay.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Excerpt(msgspec.Struct, frozen=True):
    """How a document begins, and what became of it."""

    id: str
    domain: str
    source: str
    size_bytes: int
    text: str
    stage: str = ""
    """Stage that rejected it; empty if it was kept."""
    reason: str = ""
    """Why it was rejected."""


def shorten(text: str, characters: int = CHARACTERS, lines: int = LINES) -> str:
    """The beginning of a text with an ellipsis where it was cut, without characters that move others.

    >>> shorten("a\\x00b\\u202ec" + "d" * 400)[:6], len(shorten("x" * 10**6))
    ('a·b·cd', 321)
    """
    start = _UNSAFE.sub("·", text[: characters + 1].replace("\r\n", "\n"))
    kept = "\n".join(start[:characters].split("\n")[:lines])
    return kept + "…" if len(kept) < len(start) or len(text) > characters + 1 else kept


def kept_excerpts(folder: Path, count: int = KEPT) -> list[Excerpt]:
    """One document of each of the first `count` domains met."""
    found: dict[str, Excerpt] = {}
    for row in _first_rows(folder):
        excerpt = _excerpt(row)
        if excerpt.domain not in found and excerpt.text.strip():
            found[excerpt.domain] = excerpt
    return [found[domain] for domain in sorted(found)[:count]]


def rejected_excerpts(folder: Path, per_stage: int = PER_STAGE) -> list[Excerpt]:
    """A few documents of every stage that rejected any, of different domains where there are."""
    found: list[Excerpt] = []
    for stage in folder.list():
        excerpts = [_excerpt(row, stage.name) for row in _first_rows(stage)]
        by_domain: dict[str, Excerpt] = {}
        for excerpt in excerpts:
            by_domain.setdefault(excerpt.domain, excerpt)
        rest = [excerpt for excerpt in excerpts if excerpt not in by_domain.values()]
        found += [*by_domain.values(), *rest][:per_stage]
    return found


def _first_rows(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for file in folder.list():
        if len(rows) >= ROWS_LOOKED_AT:
            break
        try:
            with file.open() as source:
                batch = next(pq.ParquetFile(source).iter_batches(ROWS_LOOKED_AT), None)
            if batch is not None:
                rows += batch.slice(0, ROWS_LOOKED_AT - len(rows)).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ArtifactError(
                f"{file} is no readable Parquet file ({error}), so no document of it can be shown. Build the "
                "corpus again."
            ) from error
    return rows


def _excerpt(row: dict[str, str], stage: str = "") -> Excerpt:
    meta = json.loads(row["meta"])
    return Excerpt(
        id=row["id"],
        domain=str(meta.get("domain", "")),
        source=shorten(str(meta.get("path") or row["source_id"]), 120, 1),
        size_bytes=len(row["text"].encode("utf-8", "surrogatepass")),
        text=shorten(row["text"].strip()),
        stage=stage,
        reason=shorten(row.get("reason") or "", 160, 1),
    )
