"""Records: the commit of an artifact. It exists if and only if its `.artifact.json` does.

A record is written once, by put-if-absent, after all files are in place. It names no root, so that a root
can be moved. Per-file digests stand beside it in `.files.json`, for `verify`.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from lmlab.artifacts.handles import Artifact, Place, build
from lmlab.core import config
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.provenance import Provenance
from lmlab.storage import Path

RECORD = ".artifact.json"
FILES = ".files.json"
SCHEMA = 1
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Input:
    """A dependency as it was when it was used."""

    name: str
    version: str
    fingerprint: str
    epoch: str
    """Which build of it: tells a rebuilt `dev` input from the one used then."""

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
    if record.schema != SCHEMA:
        raise ArtifactError(
            f"The record {folder / RECORD} has format {record.schema}; this lmlab reads format {SCHEMA}. "
            "Use the version of lmlab that wrote it."
        )
    return record


def commit(folder: Path, record: Record) -> bool:
    """Write the record if there is none: from then on the artifact exists. False if another one won."""
    return (folder / RECORD).create_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))


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


# -- files -----------------------------------------------------------------------------------------


def data_files(folder: Path) -> list[Path]:
    """The files that make up an artifact: all but the dot-files at its top."""
    return [path for child in folder.list() if not child.name.startswith(".") for path in _below(child)]


def seal(folder: Path) -> Files:
    """Hash an artifact's files, keep the digests in `.files.json`, and return the totals."""
    listing = digests(folder)
    if listing:
        (folder / FILES).write_bytes(msgspec.json.format(msgspec.json.encode(listing), indent=1))
    sizes = sum(size for size, _ in listing.values())
    return Files(len(listing), sizes, tree_sha256(listing))


def count(folder: Path) -> Files:
    """The totals without reading: for adopted data, which may be terabytes."""
    files = data_files(folder) if folder.is_dir() else [folder]
    return Files(len(files), sum(path.size() for path in files), None)


def digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 of each file, by its name below the artifact."""
    return {path.relative_to(folder): _sha256(path) for path in data_files(folder)}


def tree_sha256(listing: dict[str, tuple[int, str]]) -> str:
    """One hash over names, sizes and contents."""
    lines = [f"{digest} {size} {name}\n" for name, (size, digest) in sorted(listing.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def verify(folder: Path, record: Record) -> list[str]:
    """What differs from the record, a line a file; empty if every byte is as it was committed."""
    if record.files.tree_sha256 is None:
        return _verify_adopted(record)
    found = digests(folder)
    if tree_sha256(found) == record.files.tree_sha256:
        return []
    data = (folder / FILES).read_if_present()
    try:
        recorded = {} if data is None else msgspec.json.decode(data, type=dict[str, tuple[int, str]])
    except msgspec.DecodeError:
        recorded = {}
    if tree_sha256(recorded) != record.files.tree_sha256:
        return [f"{FILES}: missing or changed, so the changed file can't be named; the tree's hash differs"]
    return [
        f"{name}: {_difference(recorded.get(name), found.get(name))}"
        for name in sorted(recorded.keys() | found.keys())
        if recorded.get(name) != found.get(name)
    ]


def _verify_adopted(record: Record) -> list[str]:
    now = count(Path(str(record.source)))
    if (now.count, now.bytes) == (record.files.count, record.files.bytes):
        return []
    then = record.files
    return [
        f"{record.source}: adopted with {then.count} files, {then.bytes} bytes; now {now.count}, {now.bytes}"
    ]


def _difference(recorded: tuple[int, str] | None, found: tuple[int, str] | None) -> str:
    if recorded is None:
        return "is not part of the artifact"
    if found is None:
        return "is missing"
    if recorded[0] != found[0]:
        return f"has {found[0]} bytes instead of {recorded[0]}"
    return f"has other content (sha256 {found[1][:12]} instead of {recorded[1][:12]})"


def _below(child: Path) -> list[Path]:
    return child.walk() if child.is_dir() else [child]


def _sha256(path: Path) -> tuple[int, str]:
    if not path.is_local:
        data = path.read_bytes()
        return len(data), hashlib.sha256(data).hexdigest()
    hasher, size = hashlib.sha256(), 0
    with path.local.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
            size += len(block)
    return size, hasher.hexdigest()
