"""Where a report's numbers come from: every artifact upstream, read from the records, inputs first."""

import posixpath
from collections.abc import Iterable

import msgspec

from lmlab.artifacts import Artifact
from lmlab.artifacts.records import Record, load
from lmlab.core.errors import ArtifactError
from lmlab.storage import Path


class Node(msgspec.Struct, frozen=True):
    """One artifact upstream of the report."""

    address: str
    record: Record
    folder: str
    """Relative to the report, so that the link works wherever the root is."""

    @property
    def seconds(self) -> float:
        """Of the attempt that finished it."""
        return self.record.finished - self.record.started


def lineage(artifacts: Iterable[Artifact], root: Path, place: Path) -> list[Node]:
    """Every artifact that `artifacts` were made from, and themselves; inputs before what uses them."""
    nodes: dict[str, Node] = {}
    for artifact in artifacts:
        _visit(root, artifact.name, artifact.version, place, nodes)
    return list(nodes.values())


def _visit(root: Path, name: str, version: str, place: Path, nodes: dict[str, Node]) -> None:
    address = f"{name}@{version}"
    if address in nodes:
        return
    folder = root / name / version
    record = load(folder)
    if record is None:
        raise ArtifactError(
            f"{folder} has no record, so where {address} comes from can't be shown. Build it again."
        )
    for before in record.inputs:
        _visit(root, before.name, before.version, place, nodes)
    nodes[address] = Node(address, record, posixpath.relpath(str(folder), str(place)))
