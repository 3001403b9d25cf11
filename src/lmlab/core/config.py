"""Frozen configs as JSON and back, and what differs between two of them.

`encode` turns frozen dataclasses, enums, paths and plain values into JSON, each dataclass tagged with its
class name; `decode` is its strict inverse; `canonical` is the one spelling that is hashed; `diff` compares
two encoded configs field by field. Values without a stable meaning (functions, NaN, open files) are refused.
"""

import dataclasses
import enum
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Union, get_args, get_origin

from lmlab.core.errors import ConfigError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
TAG = "type"
MISSING = "(absent)"

# What decoding may turn into what: JSON has no tuples, paths or durations, and 1 is a good float.
_CONVERSIONS: tuple[tuple[type, type | tuple[type, ...], typing.Callable[[typing.Any], object]], ...] = (
    (float, int, float),
    (timedelta, (int, float), lambda seconds: timedelta(seconds=seconds)),
    (Path, str, Path),
    (tuple, list, tuple),
)


def encode(value: object, where: str = "config") -> Json:
    """JSON for `value`; a dataclass becomes {"type": its class name, field: …}.

    Raises ConfigError naming the place of a value that has no stable meaning.

    >>> from lmlab.core.resources import Resources
    >>> encode(Resources(cpu=2))
    {'type': 'Resources', 'cpu': 2, 'memory_bytes': None, 'gpus': 0, 'tasks': 1}
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(
                f"{where} is {value}, which has no JSON and equals nothing. Give a finite number or None."
            )
        return value
    if isinstance(value, enum.Enum):
        return encode(value.value, where)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: encode(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)
        }
        return {TAG: type(value).__name__, **fields}
    return _encode_collection(value, where)


def _encode_collection(value: object, where: str) -> Json:
    if isinstance(value, list | tuple):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((encode(item, f"{where}{{…}}") for item in value), key=canonical)
    if isinstance(value, Mapping):
        encoded: dict[str, Json] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{where} has the key {key!r}, but only text keys survive as JSON. Use a string."
                )
            encoded[key] = encode(item, f"{where}.{key}")
        return encoded
    raise ConfigError(
        f"{where} is a {type(value).__name__} ({str(value)[:60]!s}), which has no stable form to record. "
        "Use numbers, text, enums, paths, lists, dicts or frozen dataclasses."
    )


def canonical(encoded: Json) -> str:
    """The one spelling of an encoded config: sorted keys, no spaces, floats by repr.

    >>> canonical({"b": 1.0, "a": [True, None]})
    '{"a":[true,null],"b":1.0}'
    """
    return json.dumps(encoded, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(encoded: Json) -> str:
    """The first 16 hex digits of the sha256 of the canonical form.

    >>> fingerprint({"a": 1})
    '015abd7f5cc57a2d'
    """
    return hashlib.sha256(canonical(encoded).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Change:
    """One field that differs between two configs."""

    path: str
    """Dotted place, e.g. `run.model.hidden`."""
    old: Json
    """The value then; "(absent)" if the field did not exist."""
    new: Json
    """The value now."""

    def __str__(self) -> str:
        old, new = (json.dumps(side, ensure_ascii=False) for side in (self.old, self.new))
        return f"{self.path}: {old} -> {new}"


def diff(old: Json, new: Json, path: str = "") -> list[Change]:
    """The fields that differ, in the order of the new config.

    >>> [str(change) for change in diff({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3]})]
    ['b[1]: 2 -> 3']
    """
    if isinstance(old, dict) and isinstance(new, dict) and old.get(TAG) == new.get(TAG):
        keys = [*new, *(key for key in old if key not in new)]
        changes = []
        for key in keys:
            place = f"{path}.{key}" if path else key
            changes += diff(old.get(key, MISSING), new.get(key, MISSING), place)
        return changes
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            change
            for i, pair in enumerate(zip(old, new, strict=True))
            for change in diff(*pair, f"{path}[{i}]")
        ]
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return [] if same else [Change(path or "(whole)", old, new)]


def decode(wanted: object, data: Json, where: str = "config") -> typing.Any:
    """The value of type `wanted` that `encode` made `data` from; strict about names and types.

    Unions of dataclasses are told apart by their tag. Raises ConfigError naming the field.

    >>> from lmlab.core.resources import Resources
    >>> decode(Resources, {"type": "Resources", "cpu": 2})
    Resources(cpu=2, memory_bytes=None, gpus=0, tasks=1)
    """
    origin = get_origin(wanted)
    if wanted in (typing.Any, object):
        return data
    if origin is typing.Annotated:
        return decode(get_args(wanted)[0], data, where)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(wanted), data, where)
    if origin is typing.Literal:
        if data not in get_args(wanted):
            raise _mismatch(where, f"one of {', '.join(map(repr, get_args(wanted)))}", data)
        return data
    if origin in (list, tuple, set, frozenset):
        return _decode_sequence(origin, get_args(wanted), data, where)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise _mismatch(where, "an object", data)
        return {key: decode(get_args(wanted)[1], item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(wanted, type):
        return _decode_class(wanted, data, where)
    raise ConfigError(
        f"{where} is declared as {wanted}, which lmlab can't decode. Use dataclasses and plain types."
    )


def _decode_class(wanted: type, data: Json, where: str) -> typing.Any:
    name = wanted.__name__
    if dataclasses.is_dataclass(wanted):
        return _decode_dataclass(wanted, data, where)
    if issubclass(wanted, enum.Enum):
        try:
            return wanted(data)
        except ValueError:
            choices = ", ".join(repr(member.value) for member in wanted)
            raise _mismatch(where, f"one of {choices}", data) from None
    if wanted is type(None) and data is None:
        return None
    if type(data) is wanted and wanted in (bool, int, float, str, list, dict):
        return data
    for kind, accepted, convert in _CONVERSIONS:
        if wanted is kind and isinstance(data, accepted) and not isinstance(data, bool):
            return convert(data)
    raise _mismatch(where, name, data)


def _decode_dataclass(wanted: type, data: Json, where: str) -> typing.Any:
    if not isinstance(data, dict):
        raise _mismatch(where, wanted.__name__, data)
    if data.get(TAG, wanted.__name__) != wanted.__name__:
        raise _mismatch(where, wanted.__name__, data.get(TAG))
    fields = {f.name: f for f in dataclasses.fields(wanted)}
    unknown = [key for key in data if key not in fields and key != TAG]
    if unknown:
        raise ConfigError(
            f"{where} has no field {unknown[0]!r}. {wanted.__name__} knows: {', '.join(fields)}."
        )
    hints = typing.get_type_hints(wanted, include_extras=True)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = decode(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                f"{where}.{name} is missing, and {wanted.__name__} has no default for it. Give a value."
            )
    return wanted(**values)


def _decode_union(members: tuple[object, ...], data: Json, where: str) -> typing.Any:
    if data is None and type(None) in members:
        return None
    tag = data.get(TAG) if isinstance(data, dict) else None
    for member in members:
        if tag is not None and isinstance(member, type) and member.__name__ == tag:
            return decode(member, data, where)
    plain = [
        m
        for m in members
        if not (isinstance(m, type) and dataclasses.is_dataclass(m)) and m is not type(None)
    ]
    # An exact type first: 1 in `float | int` stays an int.
    for member in sorted(plain, key=lambda m: m is not type(data)):
        try:
            return decode(member, data, where)
        except ConfigError:
            continue
    names = " or ".join(getattr(member, "__name__", str(member)) for member in members)
    raise _mismatch(where, names, tag if tag is not None else data)


def _decode_sequence(origin: type, arguments: tuple[object, ...], data: Json, where: str) -> typing.Any:
    if not isinstance(data, list):
        raise _mismatch(where, "a list", data)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(arguments) != len(data):
            raise _mismatch(where, f"a list of {len(arguments)}", data)
        return tuple(
            decode(kind, item, f"{where}[{i}]")
            for i, (kind, item) in enumerate(zip(arguments, data, strict=True))
        )
    kind = arguments[0] if arguments else object
    return origin(decode(kind, item, f"{where}[{i}]") for i, item in enumerate(data))


def _mismatch(where: str, wanted: str, data: object) -> ConfigError:
    shown = repr(data) if len(repr(data)) < 80 else repr(data)[:77] + "…"
    return ConfigError(f"{where} is {shown}, but must be {wanted}. Change the value.")
