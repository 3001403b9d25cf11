"""Writes WARC files as crawlers do: one packed member for each record."""

import base64
import gzip
import hashlib
import io

from fastwarc.stream_io import Lz4Writer, ZstdWriter

DATE = "2026-01-02T03:04:05Z"


def http(body: bytes, kind: str = "text/html; charset=utf-8", status: str = "200 OK", **fields: str) -> bytes:
    """A server's answer; underscores in names of fields stand for hyphens."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def record(
    content: bytes,
    url: str = "http://a.example/",
    kind: str = "response",
    length: int | None = None,
    **headers: str,
) -> bytes:
    """A WARC record, whose declared length may be wrong."""
    lines = ["WARC/1.1", f"WARC-Type: {kind}", f"WARC-Target-URI: {url}", f"WARC-Date: {DATE}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(content) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + content + b"\r\n\r\n"


def sha1(data: bytes) -> str:
    """A digest as crawlers write it."""
    return "sha1:" + base64.b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()


def packed_by(writer: type) -> object:
    def pack(data: bytes) -> bytes:
        out = io.BytesIO()
        stream = writer(out)
        stream.write(data)
        stream.close()
        return out.getvalue()

    return pack


PACK = {
    "warc": bytes,
    "warc.gz": gzip.compress,
    "warc.zst": packed_by(ZstdWriter),
    "warc.lz4": packed_by(Lz4Writer),
}
