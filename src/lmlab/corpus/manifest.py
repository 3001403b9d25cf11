"""What may be done with a source, written down before it is read, and a refusal of anything else.

Which document goes where is told as an attribute (`slice`), over which `select` keeps: train, dev and test
never mix. Personal data and secrets are those of `redact`, asked for with `manifest.redacted`.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Literal

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus.traits.config import KINDS

Use = Literal["train", "evaluate", "research"]
SPLITS = ("train", "dev", "test")
SECRETS = ("key", "secret")
_DAY = re.compile(r"\d{4}(-\d\d){0,2}([T ].*)?")


@dataclass(frozen=True)
class Manifest:
    """The terms on which one source is taken in."""

    licenses: tuple[str, ...]
    """All that its files may have; another one is refused."""
    use: Use = "train"
    """What it may be used for: to train on, only to evaluate with, only for research."""
    fingerprint: str | None = None
    """Of the fetched files; another content is refused. None accepts what came."""
    identities: Literal["keep", "pseudonymize", "remove"] = "pseudonymize"
    """What becomes of documents with personal data: they stay, get pseudonyms, or are left out."""
    redact_secrets: bool = True
    """Whether keys and passwords are replaced."""
    max_documents: int | None = None
    """Takes a sample of so many (from 1), spread over the source; None takes all."""
    dev_from: str | None = None
    """Documents of this day (YYYY-MM-DD) or later are for development; None makes no split."""
    test_from: str | None = None
    """Documents of this day or later are for the final test."""
    date_field: str = "created"
    """Field of the meta that holds the day."""

    def __post_init__(self) -> None:
        dev, test = self.dev_from, self.test_from
        if (dev is None) != (test is None) or (dev or "") > (test or ""):
            raise ConfigError(f"dev_from={dev}, test_from={test} make no split. Give both, in order.")
        if wrong := [day for day in (dev, test) if day is not None and not _DAY.fullmatch(day)]:
            raise ConfigError(f"{wrong[0]!r} is no day to compare others with. Write it as YYYY-MM-DD.")
        if self.max_documents is not None and self.max_documents < 1:
            raise ConfigError(f"max_documents={self.max_documents} takes nothing. Give 1 or more, or None.")

    @property
    def redacted(self) -> tuple[str, ...]:
        """The kinds that `redact` replaces under these terms.

        >>> Manifest(("MIT",), identities="keep").redacted
        ('key', 'secret')
        """
        people = self.identities == "pseudonymize"
        return tuple(kind for kind in KINDS if (self.redact_secrets if kind in SECRETS else people))

    def split(self, day: object) -> str:
        """Which slice a document of this day belongs to; "no date" for one without, or a coarse one.

        >>> Manifest(("MIT",), dev_from="2026-01-01", test_from="2026-02-01").split("2026-01-31T09:00")
        'dev'
        """
        if self.dev_from is None or self.test_from is None:
            return "train"
        bounds = self.dev_from, self.test_from
        if not isinstance(day, str) or not _DAY.fullmatch(day):
            return "no date"
        is_coarse = any(bound.startswith(day) and bound != day for bound in bounds)
        return "no date" if is_coarse else SPLITS[sum(day >= bound for bound in bounds)]


def fingerprint(raw: dict[str, Any]) -> str:
    """16 hex digits over names, sizes and digests of what a raw manifest lists, in any order.

    >>> fingerprint({"archives": []})
    'e3b0c44298fc1c14'
    """
    lines = sorted(f"{entry['file']} {entry['bytes']} {entry['sha256']}\n" for entry in raw["archives"])
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def check(manifest: Manifest, raw: dict[str, Any], purpose: Use) -> None:
    """InputError if what was fetched is not what the manifest was written for, or not for this purpose."""
    if manifest.use != purpose:
        raise InputError(
            f"This source may be used to {manifest.use} only, and is asked for to {purpose}. Leave it out, "
            "or agree on other terms and change its manifest."
        )
    found = fingerprint(raw)
    if manifest.fingerprint not in (None, found):
        raise InputError(
            f"The fetched files have the fingerprint {found}, the manifest is for {manifest.fingerprint}: "
            "the content changed. Look at what is new, then pin it."
        )
    for entry in raw["archives"]:
        terms = {piece.get("license") or entry["license"] for piece in entry["slices"]} or {entry["license"]}
        if other := sorted(terms - set(manifest.licenses)):
            raise InputError(
                f"{entry['file']} is under {other[0]}, the manifest allows {', '.join(manifest.licenses)}. "
                "Read its terms, then add them or leave the file out."
            )


def slices(table: Any, settings: tuple[Manifest, str]) -> Any:
    """The annotation: train, dev or test for each document, or why it is in none.

    A text that is in two slices is held out by the later one. `settings` has the last id of the sample.
    """
    import orjson
    import pyarrow as pa

    from lmlab.corpus.traits.redact import spans_of

    manifest, last = settings
    people = tuple(kind for kind in KINDS if kind not in SECRETS) if manifest.identities == "remove" else ()
    ids = table.column("id").to_pylist()
    days = [orjson.loads(meta).get(manifest.date_field) for meta in table.column("meta").to_pylist()]
    found = [manifest.split(day) for day in days]
    latest = {id_: name for name in SPLITS for id_, own in zip(ids, found, strict=True) if own == name}
    for i, (id_, text) in enumerate(zip(ids, table.column("text"), strict=True)):
        if last and id_ > last:
            found[i] = "beyond the sample"
        elif found[i] in SPLITS and latest[id_] != found[i]:
            found[i] = f"held out in {latest[id_]}"
        elif people and spans_of(text.as_py().encode(), people):
            found[i] = "personal data"
    return pa.table({"id": table.column("id"), "slice": pa.array(found, pa.string())})
