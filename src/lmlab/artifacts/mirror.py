"""Artifacts of other regions' roots, copied whole on first use: by artifact, never by file.

The caller holds the claim of the own root, and commits the record after `copy_artifact` has returned, so a
half-copied artifact is never visible and only one process of all copies. A rerun takes what is there already.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lmlab.artifacts import records
from lmlab.artifacts.records import Record
from lmlab.core.errors import ArtifactError, ClaimLost, StorageError
from lmlab.storage import Path, budget, copy, regions, tree


@dataclass(frozen=True)
class Found:
    """An artifact that some root holds."""

    root: Path
    region: str | None
    """That lmlab.toml declares for the root."""
    name: str
    """The artifact's folder below it."""
    record: Record

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.root / self.name


def locate(name: str, roots: Sequence[Path] | None = None) -> Found | None:
    """The first root that holds a record in its folder `name`: the own one, then in lmlab.toml's order."""
    for root in regions.regional_roots() if roots is None else roots:
        # Records are small, and a plan that looks for them writes nothing, not even what it read.
        with budget.prepaid(root, 0):
            record = records.load(root / name)
        if record is not None:
            return Found(root, regions.region_of(root), name, record)
    return None


def copy_artifact(found: Found, target: Path, *, lost: threading.Event) -> None:
    """Copy an artifact's files, but not its record, and prove them to be those that it was committed with.

    All bytes are charged to the run's budget at once, before the first is read. Raises BudgetExceeded,
    ClaimLost once `lost` is set, and ArtifactError if count, bytes or a sha256 are not the record's.
    """
    if found.record.source is not None:
        return
    with budget.prepaid(found.folder, 0):
        listed = (found.folder / records.FILES).read_if_present()
    digests = _digests(listed, found.record)
    if not digests:
        listed = None
    sizes = _sizes(found.folder)
    _check_totals(found, sizes, found.folder)
    for name in _sizes(target).keys() - sizes.keys():
        (target / name).remove()
    there = copy.run_all(lambda name: _is_there(target / name, digests.get(name)), list(sizes))
    names = [name for name, is_there in zip(sizes, there, strict=True) if not is_there]

    def bring(name: str) -> None:
        sent = copy.copy_hashed(found.folder / name, target / name, lost)
        if digests.setdefault(name, sent) != sent:
            (target / name).remove()
            raise _damaged(found, f"{name} has sha256 {sent[1][:12]} instead of {digests[name][1][:12]}")

    try:
        with budget.prepaid(found.folder, sum(sizes[name] for name in names)):
            copy.run_all(bring, names)
    except StorageError:
        if lost.is_set():
            raise ClaimLost(f"Another process took over {target}, so its copying was ended.") from None
        raise
    _check_totals(found, _sizes(target), target)
    if tree.tree_sha256(digests) != found.record.files.tree_sha256:
        raise _damaged(found, "the hash over its files differs")
    if listed is not None:
        (target / records.FILES).write_bytes(listed)


def is_whole(folder: Path, record: Record) -> bool:
    """Whether a folder holds this record and as many files and bytes as it says."""
    standing = records.load(folder)
    sizes = _sizes(folder) if standing is not None and standing.epoch == record.epoch else {}
    return standing is not None and (len(sizes), sum(sizes.values())) == (
        record.files.count,
        record.files.bytes,
    )


def _sizes(folder: Path) -> dict[str, int]:
    return {n: stat.size_bytes for n, stat in copy.listing(folder).items() if not n.startswith(".")}


def _digests(listed: bytes | None, record: Record) -> dict[str, tuple[int, str]]:
    """Size and sha256 of each file by what the artifact kept; empty if that is not what was committed."""
    try:
        kept = msgspec.json.decode(listed or b"{}", type=dict[str, tuple[int, str]])
    except msgspec.DecodeError:
        return {}
    return kept if tree.tree_sha256(kept) == record.files.tree_sha256 else {}


def _is_there(path: Path, digest: tuple[int, str] | None) -> bool:
    return digest is not None and path.exists() and path.size() == digest[0] and tree.sha256(path) == digest


def _check_totals(found: Found, sizes: dict[str, int], folder: Path) -> None:
    then, now = found.record.files, (len(sizes), sum(sizes.values()))
    if (then.count, then.bytes) != now:
        raise _damaged(
            found, f"{folder} has {now[0]} files, {now[1]} bytes instead of {then.count}, {then.bytes}"
        )


def _damaged(found: Found, what: str) -> ArtifactError:
    return ArtifactError(
        f"{found.record.address} in {found.root} is not as it was built: {what}. See `lmlab verify "
        f"{found.record.address} --root {found.root}`; build it again, or take it from another root."
    )
