"""A Parquet file written by hand: Thrift's compact protocol, as far as one page of three numbers needs it."""

import struct
from typing import Any

I32, I64, BYTES, LIST, STRUCT = 5, 6, 8, 9, 12
Field = tuple[int, Any]


def with_page_header(size_bytes: int) -> bytes:
    """The column n = 1, 2, 3 behind a page header of about so many bytes: statistics of a long text."""
    data = struct.pack("<3q", 1, 2, 3)
    statistics = (STRUCT, {5: (BYTES, b"x" * size_bytes)})
    page = (STRUCT, {1: (I32, 3), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3), 5: statistics})
    header = _struct({1: (I32, 0), 2: (I32, len(data)), 3: (I32, len(data)), 5: page})
    size = len(header) + len(data)
    names = {2: (LIST, (I32, [0])), 3: (LIST, (BYTES, [b"n"])), 4: (I32, 0)}
    column = {1: (I32, 2), **names, 5: (I64, 3), 6: (I64, size), 7: (I64, size), 9: (I64, 4)}
    group = {1: (LIST, (STRUCT, [{2: (I64, 4), 3: (STRUCT, column)}])), 2: (I64, size), 3: (I64, 3)}
    schema = [{4: (BYTES, b"schema"), 5: (I32, 1)}, {1: (I32, 2), 3: (I32, 0), 4: (BYTES, b"n")}]
    groups = (LIST, (STRUCT, [group]))
    footer = _struct({1: (I32, 1), 2: (LIST, (STRUCT, schema)), 3: (I64, 3), 4: groups})
    return b"PAR1" + header + data + footer + struct.pack("<i", len(footer)) + b"PAR1"


def _struct(fields: dict[int, Field]) -> bytes:
    out, last = b"", 0
    for number, (kind, value) in fields.items():
        out += bytes([(number - last) << 4 | kind]) + _value(kind, value)
        last = number
    return out + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return _number(value * 2)
    if kind == BYTES:
        return _number(len(value)) + value
    if kind == LIST:
        inner, items = value
        return bytes([len(items) << 4 | inner]) + b"".join(_value(inner, item) for item in items)
    return _struct(value)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
