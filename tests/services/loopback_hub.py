"""A hub on this machine: the tree API with pages, `resolve` with redirects for large files, refusals.

Run as a program: prints its port, and ends with the process that started it. Repositories are made up:
`acme/corpus` and `acme/model` are open; `acme/gated` wants the token `hf_good` and lets only `hf_member` in;
`acme/busy` answers 429 with a Retry-After of 0 s once for each file, `acme/closed` always with one of 3600 s.
`acme/huge` lists 50,000 files in pages of 1,000, `acme/evil` one that would lie outside. What a repository
was asked for since the last time is told by `GET /asked/OWNER/NAME`.
"""

import asyncio
import hashlib
import re
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from services.starting import serve_app

PAGE = 3
LARGE = bytes(range(256)) * 400
FILES = {
    "README.md": b"# made up\n",
    "data/a b#%.txt": "grün".encode(),
    "data/empty.bin": b"",
    "data/large.bin": LARGE,
    **{f"data/deep/part-{i:05}.jsonl": b'{"i": %d}\n' % i for i in range(8)},
}
COMMIT = "1f" * 20
BRANCHES = {
    "main": FILES,
    COMMIT: FILES,
    "v1": {"README.md": b"old\n"},
    "refs/convert/parquet": {"x.parquet": b"PAR1"},
}
asked: set[str] = set()
HUGE = 50_000
seen: dict[str, list[str]] = {}


def refusal(request: Request, repository: str, path: str) -> Response | None:
    """What keeps a request from its file, if anything does."""
    seen.setdefault(repository, []).append(f"{request.method} {path}")
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if repository == "acme/gated" and token != "hf_member":
        headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to acme/gated is restricted."}
        return Response(status_code=403 if token == "hf_good" else 401, headers=headers)
    if repository == "acme/closed":
        return Response(status_code=429, headers={"Retry-After": "3600"})
    if repository == "acme/busy" and path not in asked:
        asked.add(path)
        return Response(status_code=429, headers={"Retry-After": "0"})
    return None


def files_of(repository: str, revision: str) -> dict[str, bytes] | Response:
    if not repository.startswith("acme/"):
        return Response(status_code=401, headers={"X-Error-Code": "RepoNotFound"})
    if revision not in BRANCHES:
        return Response(status_code=404, headers={"X-Error-Code": "RevisionNotFound"})
    return BRANCHES[revision]


async def tree(request: Request) -> Response:
    """A page of a folder."""
    parts = request.path_params
    repository, path = f"{parts['owner']}/{parts['name']}", parts.get("path", "")
    found = refusal(request, repository, path) or files_of(repository, parts["revision"])
    if isinstance(found, Response):
        return found
    if repository == "acme/huge":
        return huge_page(request)
    if repository == "acme/evil":
        return JSONResponse([{"type": "file", "path": "data/x\\..\\evil.txt", "size": 3, "oid": "0"}])
    below = f"{path}/" if path else ""
    rows: dict[str, dict[str, object]] = {}
    for name, data in found.items():
        if not name.startswith(below):
            continue
        folders = name[len(below) :].split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            folder = below + "/".join(folders[:depth])
            rows[folder] = {"type": "directory", "oid": "0", "size": 0, "path": folder}
        rows[name] = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name}
        if len(data) > 1000:
            rows[name]["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    if not rows:
        return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
    if request.query_params.get("recursive") != "true":
        rows = {name: row for name, row in rows.items() if "/" not in name[len(below) :]}
    start = int(request.query_params.get("cursor", 0))
    page = [rows[name] for name in sorted(rows)][start : start + PAGE]
    more = request.url.include_query_params(cursor=start + PAGE)
    return JSONResponse(page, headers={"Link": f'<{more}>; rel="next"'} if start + PAGE < len(rows) else {})


def huge_page(request: Request) -> Response:
    start = int(request.query_params.get("cursor", 0))
    names = [f"data/{i:05}.txt" for i in range(start, start + 1000)]
    page = [{"type": "file", "path": name, "size": 6, "oid": name} for name in names]
    more = request.url.include_query_params(cursor=start + 1000)
    return JSONResponse(page, headers={"Link": f'<{more}>; rel="next"'} if start + 1000 < HUGE else {})


async def requests_of(request: Request) -> Response:
    """What a repository was asked for since the last time."""
    parts = request.path_params
    return JSONResponse(seen.pop(f"{parts['owner']}/{parts['name']}", []))


async def resolve(request: Request) -> Response:
    """A file, or where it lies."""
    parts = request.path_params
    repository, path = f"{parts['owner']}/{parts['name']}", parts["path"]
    found = refusal(request, repository, path) or files_of(repository, parts["revision"])
    if isinstance(found, Response):
        return found
    if path not in found:
        return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
    data = found[path]
    if len(data) <= 1000:
        return content(request, data, hashlib.sha1(data).hexdigest())
    # Another host to the client, as the hub's store of large files is.
    elsewhere = f"http://localhost:{request.url.port}/cdn/{quote(path)}"
    told = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"'}
    return RedirectResponse(elsewhere, 302, headers=told)


async def cdn(request: Request) -> Response:
    """A large file; who sends the hub's token here gives it away."""
    if "authorization" in request.headers:
        return Response(status_code=400)
    return content(request, FILES[request.path_params["path"]], "of-the-cdn")


def content(request: Request, data: bytes, version: str) -> Response:
    headers = {"ETag": f'"{version}"', "Last-Modified": "Mon, 30 Nov 2026 18:25:31 GMT"}
    headers["Accept-Ranges"] = "bytes"
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if not wanted:
        return Response(data, headers=headers)
    start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
    if start >= len(data):
        return Response(status_code=416)
    return Response(
        data[start:end], 206, headers={**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
    )


class DecodedOnce:
    """Routes see the path as it was sent: `refs%2Fconvert` is one part of it."""

    def __init__(self, routes: Starlette) -> None:
        self.routes = routes

    async def __call__(self, scope, receive, send) -> None:
        raw = scope["raw_path"].decode().replace("refs%2Fconvert%2Fparquet", "refs-convert-parquet")
        if "refs-convert-parquet" in raw:
            scope = {**scope, "path": raw}
        await self.routes(scope, receive, send)


BRANCHES["refs-convert-parquet"] = BRANCHES.pop("refs/convert/parquet")
app = Starlette()
for kind in ("datasets", "models", "spaces"):
    app.add_route(f"/api/{kind}/{{owner}}/{{name}}/tree/{{revision}}", tree)
    app.add_route(f"/api/{kind}/{{owner}}/{{name}}/tree/{{revision}}/{{path:path}}", tree)
    prefix = "" if kind == "models" else f"/{kind}"
    app.add_route(f"{prefix}/{{owner}}/{{name}}/resolve/{{revision}}/{{path:path}}", resolve)
app.add_route("/cdn/{path:path}", cdn)
app.add_route("/asked/{owner}/{name}", requests_of)

if __name__ == "__main__":
    asyncio.run(serve_app(DecodedOnce(app)))
