"""A Parquet file whose page header holds so long a least and greatest value that pyarrow refuses it."""

import io
import struct

import pyarrow as pa
import pyarrow.parquet as pq


def with_long_statistics(table: pa.Table, size_bytes: int) -> bytes:
    """`table` (of one column) with a page header of twice `size_bytes`, as some writers make it."""
    sink = io.BytesIO()
    pq.write_table(
        table, sink, compression="none", use_dictionary=False, write_statistics=False, version="1.0"
    )
    raw = sink.getvalue()
    column = pq.ParquetFile(io.BytesIO(raw)).metadata.row_group(0).column(0)
    start, end = column.data_page_offset, column.data_page_offset + column.total_compressed_size
    # The header is compact Thrift: type, sizes, and as field 5 DataPageHeader, whose field 5 is `statistics`.
    _, after_type = _number(raw, start + 1)
    _, after_size = _number(raw, after_type + 1)
    packed_size, _ = _number(raw, after_size + 1)
    page = end - packed_size // 2
    assert raw[page - 2 : page] == b"\0\0"  # the ends of both structs
    value = _varint(size_bytes) + b"m" * size_bytes
    header = raw[start : page - 2] + b"\x1c\x18" + value + b"\x18" + value + b"\0" + b"\0\0"
    footer = raw[-8 - struct.unpack("<I", raw[-8:-4])[0] : -8]
    grown = len(header) - (page - start)
    footer = footer.replace(*(b"\x16" + _varint(2 * size) for size in (end - start, end - start + grown)))
    return raw[:start] + header + raw[page:end] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _number(raw: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if raw[place - 1] < 128:
            return value, place


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(128 | value & 127)
        value >>= 7
    return bytes([*parts, value])
