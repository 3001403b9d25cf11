"""Records: the commit of an artifact. It exists if and only if its `.artifact.json` does.

A record is written once, by put-if-absent, after all files are in place. It names no root, so that a root
can be moved. Per-file digests stand beside it in `.files.json`, for `verify`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from lmlab.artifacts.handles import Artifact, Place, build
from lmlab.core import config
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.provenance import Provenance
from lmlab.storage import Path, tree

T = TypeVar("T")
R = TypeVar("R")
RECORD = ".artifact.json"
FILES = ".files.json"
SCHEMA = 1


@dataclass(frozen=True)
class Input:
    """A dependency as it was when it was used."""

    name: str
    version: str
    fingerprint: str
    epoch: str
    """Which build of it: tells a rebuilt `dev` input from the one used then."""
    source: str | None = None
    """Where its data lay, if not in the root: adopted, or given by `--override NAME=/path`."""

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Files:
    """What an artifact holds. Dot-files at its top (record, claims) do not count."""

    count: int
    bytes: int
    tree_sha256: str | None
    """Over all names, sizes and contents; None for adopted data, which is not read."""


@dataclass(frozen=True)
class Record:
    """Everything known about a built artifact."""

    schema: int
    name: str
    version: str
    step: str
    fingerprint: str
    config: dict[str, Any]
    inputs: tuple[Input, ...]
    after: tuple[str, ...]
    result_type: str
    result: dict[str, Any]
    source: str | None
    """Where adopted data lies; None if the files are beside the record."""
    files: Files
    provenance: Provenance
    source_digest: str
    """Of the step function's code: a `dev` artifact is rebuilt when it changes."""
    started: float
    """Seconds since 1970, by the runner's clock."""
    finished: float
    attempt: int
    """The claim number under which it was built."""
    epoch: str
    """Names this build."""

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


def load(folder: Path) -> Record | None:
    """The record of an artifact, None if it is not built. Raises ArtifactError for a corrupt one."""
    data = (folder / RECORD).read_if_present()
    if data is None:
        return None
    try:
        record = msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as error:
        raise ArtifactError(
            f"The record {folder / RECORD} is corrupt ({error}), so nothing about this artifact can be "
            f"trusted. Remove {folder} to build it again."
        ) from error
    if not str(folder).endswith(f"/{record.name}/{record.version}"):
        raise ArtifactError(
            f"The record {folder / RECORD} is that of {record.address}, so it was copied here by hand and "
            f"says nothing about what lies beside it. Remove {folder}, and build it."
        )
    if record.schema != SCHEMA:
        raise ArtifactError(
            f"The record {folder / RECORD} has format {record.schema}; this lmlab reads format {SCHEMA}. "
            "Use the version of lmlab that wrote it."
        )
    return record


def commit(folder: Path, record: Record) -> bool:
    """Write the record if there is none: from then on the artifact exists. False if another one won."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    return (folder / RECORD).create_bytes(data)


def open_artifact(record: Record, result_type: type[Artifact], folder: Path) -> Artifact:
    """The built artifact, typed. Raises ArtifactError if it was recorded as another class."""
    address = record.address
    if result_type is Artifact:
        result: Artifact = Artifact()
    elif record.result_type != result_type.__name__:
        raise ArtifactError(
            f"{address} was recorded as {record.result_type}, but the code now declares "
            f"{result_type.__name__}. Build it under a new version."
        )
    else:
        try:
            result = config.decode(result_type, record.result, "result")
        except ConfigError as error:
            raise ArtifactError(
                f"The result of {address} no longer fits {result_type.__name__}: {error} "
                "Build it under a new version."
            ) from error
    path = folder if record.source is None else Path(record.source)
    return build(result, Place(path, record.name, record.version))


def spread(root: Path, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Work on all items at once where a look takes milliseconds; on a local disk threads cost more."""
    if root.is_local or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(work, items))


# -- files -----------------------------------------------------------------------------------------


def seal(folder: Path) -> Files:
    """Hash an artifact's files, keep the digests in `.files.json`, and return the totals; one listing."""
    files = folder.walk()
    if folder / RECORD in files:
        raise ArtifactError(
            f"The step wrote {RECORD} itself, which is the record that only the runner may write. "
            "Give that file another name."
        )
    listing = tree.digests(folder, [path for path in files if not path.relative_to(folder).startswith(".")])
    if listing:
        (folder / FILES).write_bytes(msgspec.json.format(msgspec.json.encode(listing), indent=1))
    return Files(len(listing), sum(size for size, _ in listing.values()), tree.tree_sha256(listing))


def count(source: Path) -> Files:
    """The totals without reading: for adopted data, which may be terabytes."""
    found = source.walk_stats() if source.is_dir() else [(source, source.stat())]
    sizes = [stat.size_bytes for path, stat in found if not str(path).startswith(f"{source}/.")]
    return Files(len(sizes), sum(sizes), None)


def verify(folder: Path, record: Record) -> list[str]:
    """What differs from the record, a line a file; empty if every byte is as it was committed."""
    then = record.files
    if then.tree_sha256 is None:
        now = count(Path(str(record.source)))
        changed = (now.count, now.bytes) != (then.count, then.bytes)
        what = f"adopted with {then.count} files, {then.bytes} bytes; now {now.count}, {now.bytes}"
        return [f"{record.source}: {what}"] if changed else []
    found = tree.digests(folder)
    if tree.tree_sha256(found) == then.tree_sha256:
        return []
    try:
        data = (folder / FILES).read_if_present() or b"{}"
        recorded = msgspec.json.decode(data, type=dict[str, tuple[int, str]])
    except msgspec.DecodeError:
        recorded = {}
    if tree.tree_sha256(recorded) != then.tree_sha256:
        return [f"{FILES}: missing or changed, so the changed file can't be named; the tree's hash differs"]
    return tree.differences(recorded, found)
