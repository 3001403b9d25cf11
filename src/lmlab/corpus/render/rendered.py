"""What a renderer gives back, and how it reads the fields of a row: an error names what is missing."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from lmlab.core.config import Json

Row = dict[str, Any]
Value = TypeVar("Value")
_NOTHING: Mapping[str, Json] = MappingProxyType({})
_SCALARS = (str, int, float)
UTF16 = (BOM_UTF16_LE, BOM_UTF16_BE)


class Rendered(NamedTuple):
    """One document as it leaves a renderer."""

    part: str
    """What tells documents of one member apart; empty if it holds only one."""
    language: str | None
    """Language named by the member itself, as a tag; None if it says none."""
    text: str
    meta: Mapping[str, Json] = _NOTHING
    """What a later filter may ask for: scores, outcomes, registers."""
    reason: str = ""
    """Why this is no document, as "kind" or "kind: detail"; empty if it is one."""


Documents = Iterator[Rendered]


def need(row: Row, name: str, kind: type[Value]) -> Value:
    """The value of a field; ValueError if it is missing, null or of another type."""
    value = row.get(name)
    if not isinstance(value, kind):
        found = "missing" if name not in row else "null" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{name!r} is {found}, not a {kind.__name__}")
    return value


def get(row: Row, name: str, default: Value) -> Value:
    """The value of a field, or `default` if it is missing or null; ValueError if it is of another type."""
    return default if row.get(name) is None else need(row, name, type(default))


def own_id(row: Row, *names: str) -> str:
    """The first of these fields (default: `id`) that is text or a number; empty if there is none."""
    return next((str(row[name]) for name in names or ("id",) if isinstance(row.get(name), _SCALARS)), "")


def scalars(row: Row, *names: str) -> dict[str, Json]:
    """Those of these fields that hold text, a number or a truth value, for the meta of a document."""
    return {name: row[name] for name in names if isinstance(row.get(name), _SCALARS)}


def blocks(*texts: str) -> str:
    """The texts that are not blank, parted by blank lines, with the line ends of Unix."""
    kept = [text.replace("\r\n", "\n").strip("\n") for text in texts if text.strip()]
    return "\n\n".join(kept) + "\n" if kept else ""


def decode(data: bytes) -> str:
    """UTF-8, or UTF-16 after its mark, with what is undecodable replaced by U+FFFD; the mark is dropped."""
    return data.decode("utf-16" if data.startswith(UTF16) else "utf-8-sig", errors="replace")
