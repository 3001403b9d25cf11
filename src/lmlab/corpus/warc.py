"""WARC files to pages: the HTML responses of a crawl, decoded, each with its address and date.

A record that is cut off, wrong in length or digest, or packed as a bomb is given with its reason, and reading
goes on at the next mark of a record. Requests, revisits and what is no page are counted and left out.
"""

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes
from lmlab.dataflow.counters import count
from lmlab.storage import Path

MAX_PAGE_BYTES = 64 << 20
_MARKS = (b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")  # gzip, zstd, lz4
_BLOCK = 1 << 20
_MOST_FAULTS = 1000
"""In one file: each costs a search for the next record, and a file with more is lost."""


@dataclass(frozen=True)
class WebRecord:
    """A page as a crawler got it, or what is left of a broken record."""

    url: str
    """WARC-Target-URI."""
    date: str
    """WARC-Date, as it stands."""
    charset: str | None = None
    """As the server said."""
    html: bytes = b""
    """The page, without chunks and compression."""
    reason: str = ""
    """What is broken, as "kind: detail"; empty if nothing is."""


@dataclass(frozen=True)
class _Block:
    """A record as it stands in the file; `fault` says why the next one can't follow it."""

    place: int
    kind: str
    headers: dict[str, str]
    content: bytes
    fault: str = ""


def records(path: Path) -> Iterator[WebRecord]:
    """The pages of a WARC file, packed record by record or not at all, and its broken records.

    InputError for a file without any record.
    """
    is_warc = False
    for block in _all_blocks(path):
        is_warc = is_warc or block.kind != ""
        for page in _pages(block):
            count("warc broken records" if page.reason else "warc pages")
            yield page
    if not is_warc:
        raise InputError(f"{path} ({format_bytes(path.size())}) holds no WARC record. Fetch it again.")


def _all_blocks(path: Path) -> Iterator[_Block]:
    """All records: after a broken one from the next mark of a record on."""
    with path.open() as file:
        start = file.read(4)
        mark = next((mark for mark in _MARKS if start.startswith(mark)), b"WARC/1.")
        position: int | None = 0
        faults = 0
        while position is not None:
            block = _Block(position, "", {}, b"")
            for block in _blocks(file, position):
                # Bytes that are no record belong to the broken one before them.
                if block.kind or block.place == 0:
                    yield block
            faults += bool(block.fault)
            if faults == _MOST_FAULTS:
                yield replace(block, kind="", fault=f"lost: {faults} faults, so the rest is not read")
            is_over = not block.fault or faults == _MOST_FAULTS
            position = None if is_over else _find(file, mark, block.place + 1)


def _blocks(file: io.BufferedIOBase, start: int) -> Iterator[_Block]:
    """Records from `start` on, up to the first with a fault: a length is right if a record follows it."""
    from fastwarc.warc import ArchiveIterator

    file.seek(start)
    held = _Block(start, "", {}, b"")
    try:
        for record in ArchiveIterator(cast(BinaryIO, file), parse_http=False):
            if held.kind:
                yield held
            size = record.content_length
            content = record.reader.read(min(size, MAX_PAGE_BYTES))
            headers = {name.lower(): value for name, value in record.headers}
            held = _Block(record.stream_pos, headers.get("warc-type", "unknown"), headers, content)
            if len(content) < size:
                kind = "too large" if size > MAX_PAGE_BYTES else "cut off"
                fault = f"{kind}: it declares {format_bytes(size)}, {format_bytes(len(content))} were read"
                yield replace(held, fault=fault)
                return
    except OSError as error:
        yield replace(held, fault=f"no record follows: {error}")
        return
    yield held


def _find(file: io.BufferedIOBase, mark: bytes, start: int) -> int | None:
    """Where the next mark of a record begins, at or after `start`."""
    while True:
        file.seek(start)
        block = file.read(_BLOCK)
        if (found := block.find(mark)) >= 0:
            return start + found
        if len(block) < _BLOCK:
            return None
        start += _BLOCK + 1 - len(mark)


def _pages(block: _Block) -> Iterator[WebRecord]:
    """The page in a record, if there is one, and what is wrong with the record."""
    page = WebRecord(block.headers.get("warc-target-uri", ""), block.headers.get("warc-date", ""))
    head, _, body = block.content.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    kind = fields.get("content-type", "").lower()
    is_page = re.match(r"HTTP/\S+ 200\b", status) and kind.startswith(("text/html", "application/xhtml"))
    reason = block.fault
    if block.kind == "response" and is_page:
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", kind)
        try:
            html, is_sure = _payload(block, body, fields)
            if is_sure or not block.fault:
                yield replace(page, charset=charset and charset[1], html=html)
        except (ValueError, OSError, zlib.error) as error:
            reason = reason or str(error)
    else:
        count(f"warc {block.kind}, no page")
    if reason:
        yield replace(page, reason=reason)


def _payload(block: _Block, body: bytes, fields: dict[str, str]) -> tuple[bytes, bool]:
    """The decoded page, and whether a digest says that it is whole; ValueError if one says that it is not."""
    plain = _dechunked(body) if "chunked" in fields.get("transfer-encoding", "").lower() else body
    html = plain
    for encoding in reversed(fields.get("content-encoding", "").lower().split(",")):
        html = _inflated(html, encoding.strip())
    # Crawlers differ in what they call the payload.
    of_name = {"warc-block-digest": [block.content], "warc-payload-digest": [body, plain, html]}
    for name, candidates in of_name.items():
        algorithm, _, told = block.headers.get(name, "").lower().partition(":")
        if algorithm in ("sha1", "sha256", "md5"):
            found = [hashlib.new(algorithm, data, usedforsecurity=False).digest() for data in candidates]
            if not any(told in (one.hex(), base64.b32encode(one).decode().lower()) for one in found):
                raise ValueError(f"wrong digest: {name} says {told[:64]}")
            return html, True
    return html, False


def _dechunked(body: bytes) -> bytes:
    """Without the lengths of chunks; as it stands if the crawler took them out."""
    parts: list[bytes] = []
    position = 0
    while True:
        end = body.find(b"\r\n", position)
        length = re.fullmatch(rb"([0-9a-fA-F]{1,15})\s*(;.*)?", body[position : max(end, 0)])
        if length is None and not parts:
            return body
        if length is None:
            raise ValueError(f"broken chunks: no length at byte {position} of {len(body)}")
        size = int(length[1], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2


def _inflated(body: bytes, encoding: str) -> bytes:
    """Without this content encoding; as it stands if the crawler took it off."""
    from fastwarc.stream_io import BrotliReader, ZstdReader

    if encoding in ("", "identity", "utf-8", "none") or body.lstrip()[:1] == b"<":
        return body
    if encoding in ("gzip", "x-gzip", "deflate"):
        stream = zlib.decompressobj(47 if body[:1] in (b"\x1f", b"\x78") else -15)
        data = stream.decompress(body, MAX_PAGE_BYTES + 1)
        if not stream.eof and len(data) <= MAX_PAGE_BYTES:
            raise ValueError(f"cut off: {len(body)} bytes of {encoding} do not end")
    elif encoding in ("br", "zstd"):
        reader = (BrotliReader if encoding == "br" else ZstdReader)(io.BytesIO(body))
        data = reader.read(MAX_PAGE_BYTES + 1)
    else:
        raise ValueError(f"unknown content encoding: {encoding[:40]!r}")
    if len(data) > MAX_PAGE_BYTES:
        raise ValueError(
            f"bomb: {len(body)} bytes of {encoding} hold more than {format_bytes(MAX_PAGE_BYTES)}"
        )
    return data
