"""From handles to a graph: versions resolved, every call visited once, contradictions refused."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lmlab.artifacts import records
from lmlab.artifacts.calls import Call
from lmlab.artifacts.handles import Artifact, call_of
from lmlab.artifacts.identity import (
    Recipe,
    Versions,
    bare_name,
    check_name,
    find_handles,
    is_mutable,
    recipe,
    spellings,
    stored_name,
)
from lmlab.artifacts.records import Record
from lmlab.core import provenance
from lmlab.core.config import TAG
from lmlab.core.errors import ArtifactError, ConfigError, InputError
from lmlab.core.resources import Resources
from lmlab.storage import Path


@dataclass(frozen=True)
class Node:
    """One artifact of an experiment, and how to build it."""

    call: Call
    name: str
    """As stored: `dev` versions lie below `users/{user}/`."""
    version: str
    recipe: Recipe
    inputs: tuple[str, ...]
    """Addresses found in the arguments: part of the recipe."""
    after: tuple[str, ...]
    """Addresses that must be built before, without being used."""
    given: str | None = None
    """Existing data that the command line put in its place: nothing is built or recorded for it."""

    @cached_property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Everything that must be built before."""
        return (*self.inputs, *self.after)

    @property
    def is_mutable(self) -> bool:
        """Whether this is a `dev` version."""
        return is_mutable(self.version)

    @cached_property
    def fingerprint(self) -> str:
        """Of today's recipe."""
        return self.recipe.fingerprint

    def is_called(self, wanted: str) -> bool:
        """Whether a name or address means this artifact; `users/{user}/` may be left out."""
        return wanted in spellings(self.name, self.version)

    def folder(self, root: Path) -> Path:
        """Where the artifact's record, claims and (unless adopted) files are."""
        return root / self.name / self.version

    def load(self, root: Path) -> Record | None:
        """Its record, None if it is not built; for given data one that says where they are."""
        return records.load(self.folder(root)) if self.given is None else _stand_in(self, Path(self.given))


@dataclass(frozen=True)
class Graph:
    """The artifacts of an experiment by address, each after everything it needs."""

    nodes: dict[str, Node]
    targets: tuple[str, ...]
    """What was asked for."""
    addresses: Mapping[int, str]
    """By the identity of each call: two calls may make one artifact."""

    def address_of(self, call: Call) -> str:
        """The address a call got in this graph."""
        return self.addresses[id(call)]

    def only(self, wanted: str) -> "Graph":
        """The part needed for one artifact, given as a name or an address."""
        chosen = [address for address, node in self.nodes.items() if node.is_called(wanted)]
        if not chosen:
            names = ", ".join(sorted(bare_name(node.name) for node in self.nodes.values())[:12])
            raise ConfigError(f"--only {wanted}: this experiment makes no such artifact. It makes: {names}.")
        keep = set(chosen)
        for address in reversed(self.nodes):
            if address in keep:
                keep.update(self.nodes[address].needs)
        return Graph({a: node for a, node in self.nodes.items() if a in keep}, tuple(chosen), self.addresses)


def _stand_in(node: Node, place: Path) -> Record:
    """What a record would say about given data: typed if they are an artifact, or need no fields."""
    if not place.exists():
        raise InputError(f"--override {bare_name(node.name)}={place}: nothing is there. Check the path.")
    try:
        known = records.load(place)
    except ArtifactError:
        known = None
    if known is not None:
        return replace(known, name=node.name, version=node.version, source=known.source or str(place))
    try:
        result = node.call.result_type()
    except TypeError as error:
        raise ArtifactError(
            f"--override {bare_name(node.name)}={place}: no record is there, and {error}. Give an artifact's "
            f"folder, or use adopt(…, result={node.call.result_type.__name__}(…))."
        ) from None
    return Record(
        schema=records.SCHEMA,
        name=node.name,
        version=node.version,
        step="path",
        fingerprint=node.fingerprint,
        config=node.recipe.config,
        inputs=(),
        after=(),
        result_type=type(result).__name__,
        result=result.result,
        source=str(place),
        files=records.Files(0, 0, None),
        provenance=provenance.capture(),
        source_digest="",
        started=0.0,
        finished=0.0,
        attempt=0,
        epoch=node.fingerprint,
    )


def collect(described: Any, versions: Versions) -> Graph:
    """The graph below the handles that `build()` returned. No I/O. Linear in the number of calls."""
    targets = [call for h in find_handles(described) if (call := call_of(h)) is not None]
    if not targets:
        raise ConfigError(
            "build() returned no artifact, so there is nothing to do. Return the handle of the last step."
        )
    addresses = _Addresses(versions)
    nodes: dict[str, Node] = {}
    for call in _in_order(targets, versions):
        made = _node(call, addresses)
        nodes[made.address] = _merge(nodes[made.address], made) if made.address in nodes else made
    versions.refuse_unused()
    _refuse_same_folder(nodes)
    asked = dict.fromkeys(addresses.of_call(call) for call in targets)
    return Graph(nodes, tuple(asked), addresses.known)


class _Addresses:
    """The address of each call, resolved once."""

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self.known: dict[int, str] = {}

    def of_call(self, call: Call) -> str:
        if id(call) not in self.known:
            check_name(call.name)
            version = self.versions.resolve(call)
            self.known[id(call)] = f"{stored_name(call.name, version)}@{version}"
        return self.known[id(call)]

    def of(self, value: Artifact) -> str:
        call = call_of(value)
        return value.address if call is None else self.of_call(call)


def _needs(call: Call, versions: Versions) -> Iterator[Call]:
    if versions.path_of(call) is not None:
        return
    for found in (*find_handles(call.arguments), *call.after):
        needed = call_of(found)
        if needed is not None:
            yield needed


def _in_order(targets: Iterable[Call], versions: Versions) -> list[Call]:
    """Every call once, after those it needs. Iterative: a chain may be longer than Python's stack."""
    ordered: list[Call] = []
    state: dict[int, str] = {}
    for target in targets:
        stack = [(target, _needs(target, versions))] if id(target) not in state else []
        state.setdefault(id(target), "open")
        while stack:
            call, remaining = stack[-1]
            needed = next(remaining, None)
            if needed is None:
                stack.pop()
                state[id(call)] = "done"
                ordered.append(call)
            elif id(needed) not in state:
                state[id(needed)] = "open"
                stack.append((needed, _needs(needed, versions)))
            elif state[id(needed)] == "open":
                raise ConfigError(
                    f"{call.name} needs {needed.name}, which needs {call.name}: neither could ever be built. "
                    "Remove one of the two, probably an .after(…)."
                )
    return ordered


def _node(call: Call, addresses: _Addresses) -> Node:
    address = addresses.of_call(call)
    name, _, version = address.partition("@")
    given = addresses.versions.path_of(call)
    if given is not None:
        return Node(call, name, version, Recipe({TAG: "path", "path": given}, frozenset()), (), (), given)
    calls = [c for h in find_handles(call.arguments) if (c := call_of(h)) is not None]
    inputs = tuple(dict.fromkeys(addresses.of_call(c) for c in calls))
    node = Node(
        call=call,
        name=name,
        version=version,
        recipe=recipe(call, addresses.of),
        inputs=inputs,
        after=tuple(dict.fromkeys(addresses.of(h) for h in call.after)),
    )
    for used in inputs:
        if is_mutable(used.rpartition("@")[2]) and not node.is_mutable:
            raise ConfigError(
                f"{address} has a fixed version but uses {used}, which may change at any time, so the date "
                "would mean nothing. Give the input a date too, or run with --version dev."
            )
    return node


def _merge(first: Node, second: Node) -> Node:
    """Two calls of one address are one node, if they say the same."""
    changes = second.recipe.drift(first.recipe.config)
    if changes:
        raise ConfigError(
            f"{first.address} is made twice, by {first.call.step.name}(…) and {second.call.step.name}(…), "
            f"with different arguments ({'; '.join(map(str, changes[:3]))}). Rename one of them."
        )
    first.call.pinned = first.call.pinned or second.call.pinned
    if first.call.resources == Resources():
        first.call.resources = second.call.resources
    return replace(first, after=tuple(dict.fromkeys((*first.after, *second.after))))


def _refuse_same_folder(nodes: dict[str, Node]) -> None:
    folded: dict[str, str] = {}
    for address in nodes:
        other = folded.setdefault(address.casefold(), address)
        if other != address:
            raise ConfigError(
                f"{address} and {other} differ only in upper and lower case, which is one folder on many "
                "disks. Rename one."
            )
