"""What a run would do and why, decided from records before anything is touched.

Records are read top-down, level by level; what a built artifact was made from is not even looked at. With no
root (`--offline`) nothing is read at all.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from lmlab.artifacts import claims, mirror, records
from lmlab.artifacts.graph import Graph, Node
from lmlab.artifacts.mirror import Found
from lmlab.artifacts.records import Record
from lmlab.core.config import Change
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.units import format_bytes
from lmlab.storage import Path
from lmlab.storage.regions import regional_roots


class State(StrEnum):
    """What a run does about an artifact."""

    BUILT = "built"
    ADOPTED = "adopted"
    BUILD = "build"
    MIRROR = "mirror"
    PRUNED = "pruned"


@dataclass(frozen=True)
class Item:
    """One row of a plan."""

    node: Node
    state: State
    why: str
    drift: tuple[Change, ...] = ()
    """How a served artifact's recorded config differs from today's."""
    record: Record | None = None
    """The one in this root, or the one found in another."""
    found: Found | None = None
    """Where to copy it from."""
    is_fresh: bool = False
    """Whether its folder was empty: no record, no claims, no files."""

    @property
    def is_due(self) -> bool:
        """Whether a run builds or copies it."""
        return self.state in (State.BUILD, State.MIRROR)

    @property
    def outdated(self) -> Record | None:
        """The `dev` record to replace."""
        return self.record if self.state is State.BUILD else None


@dataclass(frozen=True)
class Plan:
    """Every artifact of a graph, each after what it needs."""

    graph: Graph
    items: dict[str, Item] = field(default_factory=dict)

    @property
    def to_build(self) -> list[Item]:
        """The rows that a run executes."""
        return [item for item in self.items.values() if item.is_due]

    def waits_for(self, item: Item) -> set[str]:
        """What a run must finish before it starts with this row."""
        needs = item.node.needs if item.state is State.BUILD else ()
        return {address for address in needs if self.items[address].is_due}


def make_plan(graph: Graph, root: Path | None, force: Collection[str] = ()) -> Plan:
    """Decide for each node. `root=None` reads nothing; `force` names `dev` artifacts to build regardless."""
    _check_force(graph, force)
    if root is None:
        why = "not looked at (--offline)"
        states = {address: State.ADOPTED if n.given else State.BUILD for address, n in graph.nodes.items()}
        return Plan(graph, {a: Item(graph.nodes[a], state, why) for a, state in states.items()})
    seen = _look_at_needed(graph, root)
    judged: dict[str, Item] = {}
    for address, node in graph.nodes.items():
        if address in seen:
            forced = any(node.is_called(wanted) for wanted in force)
            judged[address] = _judge(seen[address], judged, root, forced=forced)
    reached = _reached(graph, judged)
    pruned = "what it is for is built"
    items = {
        address: judged[address] if address in reached else Item(node, State.PRUNED, pruned)
        for address, node in graph.nodes.items()
    }
    return Plan(graph, items)


def reason_to_rebuild(node: Node, record: Record, epochs: Mapping[str, str]) -> str | None:
    """Why a `dev` artifact is out of date, given its inputs' epochs; None if it is current or fixed."""
    if not node.is_mutable or node.call.is_reference:
        return None
    changes = node.recipe.drift(record.config)
    if changes:
        return f"dev, and the recipe changed: {changes[0]}" + (" …" if len(changes) > 1 else "")
    if record.source_digest != node.call.step.source_digest:
        return f"dev, and the code of {node.call.step.name} changed"
    used = {made_from.address: made_from.epoch for made_from in record.inputs}
    for address in node.inputs:
        if epochs.get(address) != used.get(address):
            return f"dev, and {address} was rebuilt"
    return None


def _check_force(graph: Graph, force: Collection[str]) -> None:
    for wanted in force:
        nodes = [node for node in graph.nodes.values() if node.is_called(wanted)]
        if not nodes:
            raise ConfigError(f"--force {wanted}: this experiment makes no such artifact. See lmlab plan.")
        if not nodes[0].is_mutable:
            raise ConfigError(
                f"--force {wanted}: {nodes[0].address} has a fixed version, which others rely on. "
                "Build it under a new date, or as dev."
            )


def _look_at_needed(graph: Graph, root: Path) -> dict[str, Item]:
    """Look at the targets and, below what is not settled by its own record, at what it needs."""
    roots = regional_roots()
    # A root of one's own (`--root`) is none of the lab's: what is asked for there is to be built there.
    others = [other for other in roots if other != root and root in roots]
    farthest = next((place for place in (root, *others) if not place.is_local), root)
    seen: dict[str, Item] = {}
    level = list(graph.targets)
    while level:
        looks = records.spread(farthest, lambda address: _look(graph.nodes[address], root, others), level)
        seen.update(zip(level, looks, strict=True))
        open_ends = [item.node for item in looks if item.record is None or item.node.is_mutable]
        below = dict.fromkeys(address for node in open_ends for address in node.needs)
        level = [address for address in below if address not in seen]
    return seen


def _look(node: Node, root: Path, others: list[Path]) -> Item:
    """What is there, not judged yet."""
    folder, record = node.folder(root), node.load(root)
    if record is not None:
        return Item(node, State.BUILT, "has a record", record=record)
    found = mirror.locate(folder.relative_to(root), others) if others else None
    if found is not None:
        why = f"copied from {found.region}, {format_bytes(found.record.files.bytes)}"
        return Item(node, State.MIRROR, why, record=found.record, found=found)
    if not folder.list():
        return Item(node, State.BUILD, "no record", is_fresh=True)
    return Item(node, State.BUILD, _why_missing(folder))


def _judge(seen: Item, judged: Mapping[str, Item], root: Path, *, forced: bool) -> Item:
    node, record = seen.node, seen.record
    if node.given is not None:
        return replace(seen, state=State.ADOPTED, why=f"given by --override: {node.given}")
    if record is None and node.call.is_reference:
        raise ArtifactError(
            f"{node.address} is not built below {root}, and this experiment does not say how. "
            "Run the experiment that makes it, or name another version."
        )
    known = record is not None and not node.call.is_reference
    drift = tuple(node.recipe.drift(record.config)) if record and known else ()
    _check_pin(node, record, drift)
    if record is None:
        return seen
    rebuilt = [a for a in node.inputs if a in judged and judged[a].state is State.BUILD]
    epochs = {a: r.epoch for a in node.inputs if a in judged and (r := judged[a].record)}
    if forced:
        why: str | None = "forced"
    elif rebuilt and node.is_mutable:
        why = f"dev, and {rebuilt[0]} is rebuilt"
    else:
        why = reason_to_rebuild(node, record, epochs)
    if why is not None:
        return Item(node, State.BUILD, why, drift, record)
    if seen.found is not None:
        return replace(seen, drift=drift)
    state = State.BUILT if record.source is None else State.ADOPTED
    return replace(seen, state=state, drift=drift, why="drifted, served as it is" if drift else seen.why)


def _check_pin(node: Node, record: Record | None, drift: Collection[Change]) -> None:
    pinned = node.call.pinned
    if pinned is None:
        return
    # The recorded hash counts: a field added since, at its default, changes today's hash but no recipe.
    actual = node.fingerprint if record is None or drift else record.fingerprint
    if actual != pinned:
        fields = f" ({'; '.join(str(change) for change in list(drift)[:3])})" if drift else ""
        raise ArtifactError(
            f"{node.address} is pinned to {pinned}, but its recipe is {actual}{fields}. "
            "Restore the recipe, or change the pin and the version."
        )


def _why_missing(folder: Path) -> str:
    number = claims.newest(folder)
    if number == 0:
        return "no record"
    beat, owner = claims.read_beat(folder, number), claims.read_owner(folder, number)
    if beat.state == "failed":
        return f"attempt {number} failed: {beat.error.splitlines()[0] if beat.error else 'no reason left'}"
    if beat.state in ("done", "stopped"):
        return f"attempt {number} was stopped" if beat.state == "stopped" else "its record was removed"
    if claims.is_gone(owner):
        return f"attempt {number} died"
    return f"running: {owner.shown}" if owner else f"running: attempt {number}"


def _reached(graph: Graph, judged: Mapping[str, Item]) -> set[str]:
    """Targets and, below what is to be built, everything it needs."""
    reached = set(graph.targets)
    for address in reversed(graph.nodes):
        if address in reached and judged[address].state is State.BUILD:
            reached.update(graph.nodes[address].needs)
    return reached
