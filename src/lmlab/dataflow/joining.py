"""Joining two streams that are sorted by the same key, without moving anything."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from lmlab.core.errors import InputError
from lmlab.dataflow.shuffle import Order, ordered, value_of


@dataclass(frozen=True)
class Join:
    """How two sides meet."""

    key: str | Order
    how: Literal["inner", "left"]
    right: Any
    """The right side: of a plan the whole data set, of a task its one branch."""


def both(left: dict[str, Any], right: dict[str, Any] | None) -> dict[str, Any]:
    """The columns of both sides; those of the left one win."""
    return {**(right or {}), **left}


def merge_join(
    left: Iterator[Any], right: Iterator[Any], join: Join, combine: Callable[..., Any]
) -> Iterator[Any]:
    """Pairs of equal keys, in the order of the left side; records of one key on the right are held."""
    others = _groups(right, join.key, "right")
    key, group = next(others, (None, iter(())))
    for found, rows in _groups(left, join.key, "left"):
        while key is not None and key < found:
            key, group = next(others, (None, iter(())))
        partners = list(group) if key == found else [None] * (join.how == "left")
        yield from (combine(row, partner) for row in rows for partner in partners)


def _groups(rows: Iterator[Any], key: str | Order, side: str) -> Iterator[tuple[bytes, Iterator[Any]]]:
    last = b""
    for found, group in groupby(rows, lambda row: ordered(value_of(row, key), "key")):
        if found < last:
            raise InputError(
                f"The {side} side of a sorted_merge_join is not sorted by {key!r}, so pairs would be missed. "
                "Write it with group_by on that key, or sort it."
            )
        last = found
        yield found, group
