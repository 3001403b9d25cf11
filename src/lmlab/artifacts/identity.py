"""Names, versions and the recorded config of a call: what an artifact *is*, wherever it is built.

Identity is `name@version` plus the literals written in the call; the root, the output folder and run-only
arguments never enter. Drift is the field-by-field difference to a recorded config, not a changed hash.
"""

import dataclasses
import getpass
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from lmlab.artifacts.calls import Call
from lmlab.artifacts.handles import Artifact, Part, is_placed
from lmlab.core import config, environ
from lmlab.core.config import MISSING, TAG, Change, Json
from lmlab.core.errors import ConfigError
from lmlab.storage import Path

GIVEN = "path-dev"
"""The version of data that `--override NAME=/path` puts in an artifact's place: mutable, never recorded."""
MACHINE_LOGINS = ("root", "runner", "ubuntu", "ec2-user")
"""Logins that are nobody's own."""
_DATE = re.compile(r"(\d{4})\.(\d{2})\.(\d{2})(\.[1-9]\d*)?")
_MUTABLE = re.compile(r"([a-z0-9][a-z0-9_-]*-)?dev")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


def is_mutable(version: str) -> bool:
    """Whether a version may be rebuilt in place: `dev` and `<label>-dev`."""
    return _MUTABLE.fullmatch(version) is not None


def check_version(version: str, name: str) -> str:
    """The version itself. Raises ConfigError unless it is a date (`2026.12.01`, `2026.12.01.2`) or `dev`.

    >>> check_version("2026.12.01", "tokens/demo")
    '2026.12.01'
    """
    if is_mutable(version):
        return version
    found = _DATE.fullmatch(version)
    try:
        date(*(int(part) for part in found.groups()[:3])) if found else None
    except ValueError:
        found = None
    if not found:
        raise ConfigError(
            f"{version!r} is no version of {name}: versions are dates, so that they sort and say when. "
            "Use YYYY.MM.DD, YYYY.MM.DD.2 for the second of a day, or dev."
        )
    return version


def check_name(name: str) -> str:
    """The name itself. Raises ConfigError if it could leave the root or hide inside another artifact.

    >>> check_name("tokens/demo")
    'tokens/demo'
    """
    segments = name.split("/")
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise ConfigError(
            f"{name!r} is no artifact name: it becomes a folder below the root, so each part must be made of "
            "letters, digits and _ . + = - and not begin with a dot. Use a name like tokens/demo."
        )
    for segment in segments:
        if _DATE.fullmatch(segment) or is_mutable(segment):
            raise ConfigError(
                f"The part {segment!r} of {name!r} looks like a version, so this artifact would lie inside "
                "another one. Rename it."
            )
    return name


def user() -> str:
    """Whose `dev` artifacts these are: LMLAB_USER, else the login. Raises ConfigError if that is no name."""
    try:
        name = environ.get("LMLAB_USER") or getpass.getuser()
    except (KeyError, OSError):
        name = ""
    if not _SEGMENT.fullmatch(name):
        raise ConfigError(
            f"Who runs this is unclear (LMLAB_USER, else the login, is {name!r}), and dev artifacts are kept "
            "per user. Set LMLAB_USER to a name of letters, digits and _ . -"
        )
    return name


def shared_login() -> str | None:
    """The login, if it says nothing about who this is and LMLAB_USER doesn't either."""
    return None if environ.get("LMLAB_USER") or user() not in MACHINE_LOGINS else user()


def stored_name(name: str, version: str) -> str:
    """Where a version is kept: a `dev` one below `users/{user}/`, so that no two people's ever meet.

    >>> stored_name("tokens/demo", "2026.12.01")
    'tokens/demo'
    """
    if not is_mutable(version) or name.startswith("users/"):
        return name
    return f"users/{user()}/{name}"


def bare_name(name: str) -> str:
    """The name as it was written: without `users/{user}/`."""
    return name.split("/", 2)[2] if name.startswith("users/") and name.count("/") > 1 else name


def spellings(name: str, version: str) -> tuple[str, ...]:
    """How people may write a stored artifact: its name or address, with `users/{user}/` or without."""
    bare = bare_name(name)
    return name, bare, f"{name}@{version}", f"{bare}@{version}"


def split_address(address: str) -> tuple[str, str | None]:
    """`name@version` as two checked strings; the version is None if it is not given."""
    name, found, version = address.partition("@")
    return check_name(name), check_version(version, name) if found else None


@dataclass
class Versions:
    """Which version a call without one gets: `overrides` by name, else `default`, else an error."""

    default: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    """Existing data to use in the place of an artifact, by its name."""
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name, version in self.overrides.items():
            check_version(version, name)
        if self.default is not None:
            check_version(self.default, "the run")

    @classmethod
    def of(cls, default: str | None, overrides: Iterable[str]) -> "Versions":
        """From the flags `--version V`, `--override NAME=V` and `--override NAME=/path`."""
        chosen: dict[str, str] = {}
        for text in overrides:
            name, found, value = text.partition("=")
            if not found or not name or not value:
                raise ConfigError(
                    f"--override {text!r} is not NAME=VERSION nor NAME=/path. Write tokens/demo=2026.12.01."
                )
            if name in chosen:
                raise ConfigError(f"--override names {name} twice. Keep one of them.")
            chosen[name] = value
        paths = {name: str(Path(value)) for name, value in chosen.items() if "/" in value}
        return cls(default, {name: value for name, value in chosen.items() if name not in paths}, paths)

    def path_of(self, call: Call) -> str | None:
        """The data to use in the place of a call, if the command line names some."""
        return self.paths.get(call.name)

    def resolve(self, call: Call) -> str:
        """The version of a call: its own, an override, the default."""
        if call.name in self.paths:
            self._used.add(call.name)
            if call.source is None:
                return GIVEN
            raise ConfigError(
                f"{call.name} is adopted from {call.source} by the code and given by --override: the two are "
                "mutually exclusive. Drop the override, or change the source in the code."
            )
        if call.version is not None:
            return check_version(call.version, call.name)
        if call.name in self.overrides:
            self._used.add(call.name)
            return self.overrides[call.name]
        if self.default is None:
            raise ConfigError(
                f"{call.name} has no version. Give one in its name ({call.name}@2026.12.01), with --version, "
                "or in experiment(build, version=…)."
            )
        return self.default

    def refuse_unused(self) -> None:
        """Raise ConfigError for an override that nothing consumed: a typo, or the code has a version."""
        for name in sorted({*self.overrides, *self.paths} - self._used):
            raise ConfigError(
                f"--override {name}=… changes nothing: no version of {name} comes from outside "
                "the code. Check the name."
            )


def find(value: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """What is wanted in lists, tuples, sets, dicts (keys too) and dataclasses, in order, not in artifacts."""
    if is_wanted(value):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from find(item, is_wanted)
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from find(pair, is_wanted)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | Artifact):
        for f in dataclasses.fields(value):
            yield from find(getattr(value, f.name), is_wanted)


def find_handles(value: Any) -> Iterator[Artifact]:
    """The artifacts in a value, wherever they stand."""
    return find(value, lambda found: isinstance(found, Artifact))


def replace_handles(value: Any, replacement: Callable[[Artifact], Any]) -> Any:
    """The same structure with every handle replaced; what holds no handle is the same object."""
    if isinstance(value, Artifact):
        return replacement(value)
    if next(find_handles(value), None) is None:
        return value
    if isinstance(value, Mapping):
        return {
            replace_handles(key, replacement): replace_handles(item, replacement)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        items = [replace_handles(item, replacement) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    # Not dataclasses.replace: checks in __post_init__ ran when the experiment was described.
    made = object.__new__(type(value))
    for f in dataclasses.fields(value):
        object.__setattr__(made, f.name, replace_handles(getattr(value, f.name), replacement))
    return made


@dataclass
class Recipe:
    """The recorded config of one call, and which of its fields stand at their defaults."""

    config: dict[str, Json]
    defaulted: frozenset[str]

    @property
    def fingerprint(self) -> str:
        """Advisory 16 hex digits of the config; what `.pin()` compares."""
        return config.fingerprint(self.config)

    def drift(self, recorded: Json) -> list[Change]:
        """What changed since `recorded`. A field that is new and stands at its default changed nothing."""
        if recorded == self.config:
            return []
        changes = config.diff(recorded, self.config)
        return [c for c in changes if not (c.old == MISSING and c.path in self.defaulted)]


def recipe(call: Call, address_of: Callable[[Artifact], str]) -> Recipe:
    """Encode a call's arguments; handles become addresses. Raises ConfigError for what has no stable form."""
    writer = _Writer(call.name, address_of)
    encoded: dict[str, Json] = {TAG: call.step.name}
    for name, value in call.arguments.items():
        if name in call.step.run_only:
            continue
        encoded[name] = writer.encode(value, name)
        if name in call.step.defaults:
            writer.note_default(value, call.step.defaults[name], name)
    return Recipe(encoded, frozenset(writer.defaulted))


class _Writer:
    def __init__(self, owner: str, address_of: Callable[[Artifact], str]) -> None:
        self.owner = owner
        self.address_of = address_of
        self.defaulted: set[str] = set()

    def encode(self, value: Any, place: str) -> Json:
        if is_placed(value):
            return self._reference(value)
        if isinstance(value, list | tuple):
            return [self.encode(item, f"{place}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, set | frozenset):
            return sorted((self.encode(item, f"{place}{{…}}") for item in value), key=config.canonical)
        if isinstance(value, Mapping):
            keys = [self._reference(key) if isinstance(key, Artifact) else key for key in value]
            if all(isinstance(key, str) for key in keys):
                pairs = zip(keys, value.values(), strict=True)
                return {key: self.encode(item, f"{place}.{key}") for key, item in pairs}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value, place)
        return config.encode(value, f"{self.owner}: {place}")

    def note_default(self, value: Any, default: Any, place: str) -> None:
        if value is default or (type(value) is type(default) and value == default):
            self.defaulted.add(place)

    def _fields(self, value: Any, place: str) -> Json:
        encoded: dict[str, Json] = {TAG: type(value).__name__}
        for f in dataclasses.fields(value):
            where, item = f"{place}.{f.name}", getattr(value, f.name)
            encoded[f.name] = self.encode(item, where)
            if f.default is not dataclasses.MISSING:
                self.note_default(item, f.default, where)
            elif f.default_factory is not dataclasses.MISSING:
                self.note_default(item, f.default_factory(), where)
        return encoded

    def _reference(self, value: Artifact) -> str:
        address = self.address_of(value)
        return f"{address}/{value.part}" if isinstance(value, Part) else address
