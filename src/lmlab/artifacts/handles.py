"""What stands for a result: an artifact, a part of one, and the handle on one that is not built yet.

One object of a result's class is a result (made by a step's body), a handle (made by calling a step: reading
a field is an error) or built (it also has a path, a name and a version). Handles and built artifacts are
equal only to themselves, so that they can be dict keys.
"""

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from lmlab.core import config
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.resources import Resources
from lmlab.storage import Path

if TYPE_CHECKING:
    from lmlab.artifacts.calls import Call

A = TypeVar("A", bound="Artifact")

_RESERVED = {"path", "name", "version", "address", "result", "after", "on", "pin"}


@dataclass(frozen=True)
class Place:
    """Where a built artifact is."""

    path: Path
    name: str
    version: str


@dataclass(frozen=True, eq=False)
class Artifact:
    """Base of every step's result: a frozen dataclass whose fields are recorded.

    >>> @dataclass(frozen=True)
    ... class Tokens(Artifact):
    ...     count: int
    >>> Tokens.at("/tmp/tokens", count=5).count
    5
    """

    @classmethod
    def at(cls, path: str | Path, *, name: str = "artifact", version: str = "dev", **result: Any) -> Self:
        """A built artifact made by hand, for calling a step's body without a runner."""
        return build(cls(**result), Place(Path(path), name, version))

    @property
    def path(self) -> Path:
        """The folder that holds the artifact's files."""
        return self._place.path

    @property
    def name(self) -> str:
        """The name, such as `corpus/demo`."""
        call = call_of(self)
        return call.name if call else self._place.name

    @property
    def version(self) -> str:
        """The version, such as `2026.12.01` or `dev`."""
        return self._place.version

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def result(self) -> dict[str, Any]:
        """The recorded fields as JSON, for callers that do not know the class."""
        if call_of(self):
            raise _unread(self, "result")
        return {f.name: config.encode(getattr(self, f.name), f.name) for f in fields(self)}

    def __getitem__(self, part: str) -> "Part":
        """A part: one folder of the artifact."""
        if call_of(self) is None:
            return Part.of(self, part, Place(self.path / part, self.name, self.version))
        return Part.of(self, part, None)

    def after(self, *others: "Artifact") -> Self:
        """Build this only after `others`: order alone, recorded, not part of its identity. Returns itself."""
        self._pending("after").after.extend(others)
        return self

    def on(self, resources: Resources) -> Self:
        """Give the step this share of the machine; `tasks` makes it a gang of processes. Returns itself."""
        call = self._pending("on")
        if resources.tasks > 1 and call.step.inline:
            raise ConfigError(
                f"{call.name} runs inside the runner (inline), so it can't be {resources.tasks} processes. "
                "Remove inline=True from the step, or tasks."
            )
        call.resources = resources
        return self

    def pin(self, fingerprint: str) -> Self:
        """Refuse any other recipe than the one with this fingerprint. Returns itself."""
        self._pending("pin").pinned = fingerprint
        return self

    @property
    def _place(self) -> Place:
        place = self.__dict__.get("_lmlab_place")
        if place is None:
            if call_of(self):
                raise _unread(self, "path")
            raise ArtifactError(
                f"This {type(self).__name__} is a result that is not stored yet, so it has no place."
            )
        return place

    def _pending(self, method: str) -> "Call":
        call = call_of(self)
        if call is None:
            raise ConfigError(
                f"{self!r} is built already, so .{method}() comes too late. Say it in the experiment."
            )
        return call


def moved(artifact: A, path: Path) -> A:
    """The same built artifact, its files read from another place."""
    made = object.__new__(type(artifact))
    made.__dict__.update(artifact.__dict__, _lmlab_place=Place(path, artifact.name, artifact.version))
    return made


def root_of(folder: Path, name: str) -> Path:
    """The root below which an artifact's folder `{root}/{name}/{version}` lies."""
    for _ in range(len(name.split("/")) + 1):
        folder = folder.parent
    return folder


class Part(Artifact):
    """One folder of an artifact (`docs["train"]`), usable wherever the artifact is: same name and version."""

    whole: Artifact
    part: str

    @classmethod
    def of(cls, whole: Artifact, part: str, place: Place | None) -> "Part":
        """The part of a handle (no place yet) or of a built artifact."""
        if not part or part.startswith(("/", ".")) or ".." in part.split("/"):
            raise ConfigError(
                f'{part!r} is no part of an artifact: it must be a folder\'s name, like "train".'
            )
        made = object.__new__(cls)
        object.__setattr__(made, "whole", whole)
        object.__setattr__(made, "part", part)
        object.__setattr__(made, "_lmlab_call", call_of(whole))
        object.__setattr__(made, "_lmlab_place", place)
        return made

    @property
    def result(self) -> dict[str, Any]:
        """The fields recorded for the whole artifact."""
        return self.whole.result

    def __repr__(self) -> str:
        return f"{self.whole!r}[{self.part!r}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return Part.of, (self.whole, self.part, self.__dict__["_lmlab_place"])


class _Bound:
    """What handles and built artifacts share: equal and hashed by identity, so that they can be dict keys."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Unread:
    """A field of a handle: there is no value before the step has run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Artifact | None, owner: type) -> Any:
        if instance is None:
            return self
        raise _unread(instance, self.name)

    def __set__(self, instance: Artifact, value: object) -> None:
        raise _unread(instance, self.name)


def handle(call: "Call") -> Artifact:
    """The handle on a call: an instance of its result's class whose fields can't be read."""
    made = object.__new__(_handle_class(call.result_type))
    object.__setattr__(made, "_lmlab_call", call)
    return made


def build(result: A, place: Place) -> A:
    """A result with its place: what a step receives for a handle."""
    made = object.__new__(_built_class(type(result)))
    made.__dict__.update({name: result.__dict__[name] for name in _field_names(type(result))})
    made.__dict__["_lmlab_place"] = place
    return cast(A, made)


def call_of(value: Artifact) -> "Call | None":
    """The call behind a handle (or behind a part of one); None for results and built artifacts."""
    return value.__dict__.get("_lmlab_call")


def is_placed(value: object) -> bool:
    """Whether a value stands for an artifact of a root: a handle, or something built; no bare result."""
    return isinstance(value, Artifact) and not value.__dict__.keys().isdisjoint(
        ("_lmlab_call", "_lmlab_place")
    )


@functools.cache
def _handle_class(result_type: type[Artifact]) -> type[Artifact]:
    members: dict[str, Any] = {name: _Unread(name) for name in _field_names(result_type)}
    members["__repr__"] = lambda self: f"<{_written(call_of(self))}>"
    members["__module__"] = result_type.__module__
    return type(result_type.__name__, (_Bound, result_type), members)


@functools.cache
def _built_class(result_type: type[Artifact]) -> type[Artifact]:
    members: dict[str, Any] = {"__module__": result_type.__module__}
    members["__repr__"] = lambda self: f"<{self.address} at {self.path}>"
    members["__reduce__"] = lambda self: (build, (_result_of(self, result_type), self._place))
    return type(result_type.__name__, (_Bound, result_type), members)


def _result_of(built: Artifact, result_type: type[Artifact]) -> Artifact:
    made = object.__new__(result_type)
    made.__dict__.update({name: built.__dict__[name] for name in _field_names(result_type)})
    return made


@functools.cache
def _field_names(result_type: type[Artifact]) -> tuple[str, ...]:
    names = tuple(f.name for f in fields(result_type))
    for name in names:
        if name in _RESERVED:
            raise ConfigError(
                f"Every artifact has a {name}, so {result_type.__name__}.{name} hides it. Rename it."
            )
    return names


def _written(call: "Call | None") -> str:
    if call is None:
        return "artifact"
    return f"{call.name}@{call.version}" if call.version else call.name


def _unread(value: Artifact, what: str) -> ArtifactError:
    return ArtifactError(
        f"{_written(call_of(value))} is not built while the experiment is being described, so its {what} "
        "can't be read here. Pass it to a step and read it there."
    )
