"""Google's object store as obstore's client speaks to it (the XML API), whole but small and in memory.

Run as a program: prints its port, and ends with the process that started it. Objects have generations and
ETags; writes honour `x-goog-if-generation-match`; there are ranges, multipart uploads, copies and paged
listings. With LMLAB_FAKE_GCS_TOKEN set, every request must carry that bearer token.
"""

import asyncio
import hashlib
import itertools
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cached_property
from urllib.parse import unquote
from xml.sax.saxutils import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from services.starting import serve_app

PAGE = 1000
_numbers = itertools.count(1_700_000_000_000_000)


@dataclass(frozen=True)
class Stored:
    """One generation of an object."""

    data: bytes
    metadata: dict[str, str]
    generation: int = field(default_factory=lambda: next(_numbers))
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "Last-Modified": format_datetime(self.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            **self.metadata,
        }


buckets: dict[str, dict[str, Stored]] = {}
uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}


def failure(status: int, code: str) -> Response:
    return Response(
        f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status, media_type="application/xml"
    )


def answer_xml(root: str, body: str) -> Response:
    return Response(f'<?xml version="1.0"?><{root}>{body}</{root}>', media_type="application/xml")


async def handle(request: Request) -> Response:
    """One request of the XML API."""
    token = os.environ.get("LMLAB_FAKE_GCS_TOKEN")
    if token and request.headers.get("authorization") != f"Bearer {token}":
        return failure(401, "AuthenticationRequired")
    bucket, _, key = request.scope["path"].lstrip("/").partition("/")
    body = await request.body()
    if not key:
        return on_bucket(request, bucket)
    if bucket not in buckets:
        return failure(404, "NoSuchBucket")
    query = request.query_params
    if request.method == "POST" and "uploads" in query:
        return begin_upload(request, bucket, key)
    if "uploadId" in query:
        return on_upload(request, buckets[bucket], key, body)
    if request.method == "PUT":
        return write(request, buckets[bucket], key, body)
    return read(request, buckets[bucket], key)


def on_bucket(request: Request, bucket: str) -> Response:
    if request.method == "PUT":
        buckets.setdefault(bucket, {})
        return Response()
    if bucket not in buckets:
        return failure(404, "NoSuchBucket")
    return listing(bucket, dict(request.query_params))


def listing(bucket: str, query: dict[str, str]) -> Response:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    entries: dict[str, str] = {}
    for key, stored in sorted(buckets[bucket].items()):
        rest = key[len(prefix) :]
        if not key.startswith(prefix) or (key <= after and not key.startswith(prefix + after)):
            continue
        folder = (
            prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
        )
        if folder is not None:
            if folder > after:
                entries[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        elif key > after:
            entries[key] = (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size><ETag>{escape(stored.etag)}</ETag>"
                f"<LastModified>{stored.modified.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}</LastModified>"
                f"<Generation>{stored.generation}</Generation></Contents>"
            )
    page = list(entries)[: min(int(query.get("max-keys", PAGE)), PAGE)]
    truncated = len(page) < len(entries)
    more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if truncated else ""
    body = "".join(entries[name] for name in page)
    state = f"<Name>{bucket}</Name><IsTruncated>{str(truncated).lower()}</IsTruncated>"
    return answer_xml("ListBucketResult", state + more + body)


def refused(request: Request, held: Stored | None) -> bool:
    wanted = request.headers.get("x-goog-if-generation-match")
    return wanted is not None and int(wanted) != (held.generation if held else 0)


def metadata_of(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-goog-meta-")}


def write(request: Request, objects: dict[str, Stored], key: str, body: bytes) -> Response:
    held = objects.get(key)
    source = request.headers.get("x-goog-copy-source")
    if refused(request, held):
        return failure(412, "PreconditionFailed")
    metadata = metadata_of(request)
    if source is not None:
        bucket, _, name = unquote(source).lstrip("/").partition("/")
        copied = buckets.get(bucket, {}).get(name)
        if copied is None:
            return failure(404, "NoSuchKey")
        body, metadata = copied.data, copied.metadata
    stored = objects[key] = Stored(body, metadata)
    if source is not None:
        return answer_xml("CopyObjectResult", f"<ETag>{escape(stored.etag)}</ETag>")
    return Response(headers={name: stored.headers[name] for name in ("ETag", "x-goog-generation")})


def read(request: Request, objects: dict[str, Stored], key: str) -> Response:
    stored = objects.get(key)
    if stored is None:
        return failure(404, "NoSuchKey")
    if request.method == "DELETE":
        if refused(request, stored):
            return failure(412, "PreconditionFailed")
        del objects[key]
        return Response(status_code=204)
    headers, data = stored.headers, stored.data
    if request.headers.get("if-match", stored.etag) not in (stored.etag, "*"):
        return failure(412, "PreconditionFailed")
    if request.headers.get("if-none-match") == stored.etag:
        return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(len(data))})
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if not wanted:
        return Response(data, headers=headers)
    first, last = wanted.groups()
    start = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= len(data):
        return failure(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return Response(data[start:end], 206, headers=headers)


def begin_upload(request: Request, bucket: str, key: str) -> Response:
    name = f"upload-{next(_numbers)}"
    uploads[name] = metadata_of(request), {}
    body = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
    return answer_xml("InitiateMultipartUploadResult", body)


def on_upload(request: Request, objects: dict[str, Stored], key: str, body: bytes) -> Response:
    name = request.query_params["uploadId"]
    if name not in uploads:
        return failure(404, "NoSuchUpload")
    if request.method == "PUT":
        part = int(request.query_params["partNumber"])
        uploads[name][1][part] = body
        return Response(headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
    if request.method == "DELETE":
        del uploads[name]
        return Response(status_code=204)
    if refused(request, objects.get(key)):
        return failure(412, "PreconditionFailed")
    metadata, parts = uploads.pop(name)
    listed = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
    stored = objects[key] = Stored(b"".join(parts[number] for number in listed), metadata)
    response = answer_xml("CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag)}</ETag>")
    response.headers["x-goog-generation"] = str(stored.generation)
    return response


async def app(scope, receive, send) -> None:
    """Requests one after the other between awaits: a condition and its write are one step."""
    await _routes(scope, receive, send)


_routes = Starlette()
_routes.add_route("/{path:path}", handle, methods=["GET", "HEAD", "PUT", "POST", "DELETE"])

if __name__ == "__main__":
    asyncio.run(serve_app(app))
