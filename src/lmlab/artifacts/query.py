"""The query service: SQL and browsing over one root as JSON, in the only process with keys to the store.

    LMLAB_QUERY_TOKEN=… python -m lmlab.artifacts.query --root R --port 0

Every route but /health asks for that token. Paths hold nothing absolute, so that it works behind any prefix.
"""

import argparse
import asyncio
import contextlib
import hmac
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmlab.artifacts import browsing, history, previews, query_jobs, records
from lmlab.artifacts.catalog import Catalog, Snapshot
from lmlab.artifacts.corpus_views import Corpora
from lmlab.artifacts.query_jobs import Job, Queries
from lmlab.core import environ, process
from lmlab.core.errors import ArtifactError, ConfigError, HostError, InputError, LmlabError
from lmlab.storage import Path, choose_root

VARIABLE = "LMLAB_QUERY_TOKEN"
FRESH_S, PATIENCE_S = 2.0, 0.3
"""The catalog is looked at again after so long; a request waits so long for it, then takes the last one."""
BODY_BYTES = 1 << 20
SHUTDOWN_S = 3
T = TypeVar("T")


class Service:
    """The endpoints over one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.catalog = Catalog(root)
        self.queries = Queries(self.catalog)
        self.corpora = Corpora(root)
        self._looked = 0.0
        self._looking: asyncio.Task[Snapshot] | None = None

    # -- SQL --------------------------------------------------------------------------------------

    async def query(self, request: HttpRequest) -> Response:
        """POST /query: 202 and the id under which the result will be found."""
        body = await _body(request)
        user = request.headers.get("x-lmlab-user", "")
        if not body.get("sql"):
            raise HTTPException(400, 'the body has no "sql": send {"sql": "SELECT …"}')
        asked = _request({**body, "user": user})
        await self._snapshot()
        job = await asyncio.to_thread(self.queries.submit, asked)
        return _json({"id": job.id}, 202)

    async def result(self, request: HttpRequest) -> Response:
        """GET /result/{id}[?offset&count], /result/{id}.csv, /result/{id}.parquet."""
        identifier, _, form = request.path_params["id"].partition(".")
        job = await asyncio.to_thread(self.queries.get, identifier)
        if job is None or form not in ("", "csv", "parquet"):
            raise HTTPException(
                404, f"there is no query {request.path_params['id']}: it is unknown or too old"
            )
        if form:
            return await asyncio.to_thread(self._download, job, form)
        offset, count = _number(request, "offset", 0), _number(request, "count", 10_000)
        return _json(await asyncio.to_thread(self._result, job, offset, count))

    async def log(self, _: HttpRequest) -> Response:
        """GET /queries: what was asked, the newest first."""
        return _json({"rows": [*reversed(self.queries.log())][:1000]})

    async def tables(self, _: HttpRequest) -> Response:
        """GET /tables: what SQL can name, and queries to begin with."""
        snapshot = await self._snapshot()
        found = await asyncio.to_thread(self.queries.tables, snapshot)
        columns = {
            name: [{"name": f.name, "type": str(f.type)} for f in t.schema] for name, t in found.items()
        }
        tables = [{"name": name, "columns": listed} for name, listed in columns.items()]
        return _json({"tables": tables, "examples": browsing.examples(snapshot)})

    # -- artifacts --------------------------------------------------------------------------------

    async def artifacts(self, request: HttpRequest) -> Response:
        """GET /artifacts?q=&state=&step=&sort=&page=&size=."""
        return _json(browsing.listing(await self._snapshot(), dict(request.query_params)))

    async def artifact(self, request: HttpRequest) -> Response:
        """GET /artifact/{address}: its record, or why there is none."""
        snapshot = await self._snapshot()
        row = snapshot.row(request.path_params["address"])
        return _json(await asyncio.to_thread(browsing.artifact, self.root, snapshot, row))

    async def lineage(self, request: HttpRequest) -> Response:
        """GET /lineage/{address}?up=1&down=1."""
        snapshot = await self._snapshot()
        address = request.path_params["address"]
        if address not in snapshot.rows and address not in snapshot.users:
            address = snapshot.row(address).address
        return _json(snapshot.lineage(address, _number(request, "up", 1), _number(request, "down", 1)))

    async def diff(self, request: HttpRequest) -> Response:
        """GET /diff?old=&new=."""
        snapshot = await self._snapshot()
        rows = [snapshot.row(request.query_params.get(side, "")) for side in ("old", "new")]
        old, new = [await asyncio.to_thread(records.load, self.root / r.name / r.version) for r in rows]
        if old is None or new is None:
            raise ArtifactError("One of the two is not built, so there is no record to compare.")
        return _json({"sections": history.compare(old, new)})

    async def files(self, request: HttpRequest) -> Response:
        """GET /files/{address}?path=."""
        return await self._on_artifact(request, previews.files)

    async def preview(self, request: HttpRequest) -> Response:
        """GET /preview/{address}?path=&offset=&count=."""
        page = _number(request, "offset", 0), min(_number(request, "count", 50), 10_000)
        return await self._on_artifact(request, partial(previews.preview, page=page))

    async def output(self, request: HttpRequest) -> Response:
        """GET /log/{address}?offset=: what the newest attempt printed."""
        return await self._on_artifact(
            request, partial(previews.output, offset=_number(request, "offset", 0))
        )

    # -- corpora and transfers --------------------------------------------------------------------

    async def all_corpora(self, _: HttpRequest) -> Response:
        """GET /corpora: the leaderboard of domains, computed in the background."""
        return _json(self.corpora.leaderboard(await self._snapshot()))

    async def corpus(self, request: HttpRequest) -> Response:
        """GET /corpus/{address} and /corpus/{address}/samples?stage=&kept=&reason=&domain=&seed=&count=."""
        address, samples = request.path_params["address"], request.path_params["address"].endswith("/samples")
        row = (await self._snapshot()).row(address.removesuffix("/samples"))
        if not samples:
            return _json(await asyncio.to_thread(self.corpora.stages, row))
        return _json(await asyncio.to_thread(self.corpora.samples, row, dict(request.query_params)))

    async def egress(self, request: HttpRequest) -> Response:
        """GET /egress?hours=24: what was read across regions, by user."""
        hours = _number(request, "hours", 24)
        return _json(await asyncio.to_thread(browsing.egress, self.root, hours, time.time()))

    async def health(self, _: HttpRequest) -> Response:
        """GET /health: open to all, says only that it lives."""
        return _json({"status": "ok"})

    # -- inside -----------------------------------------------------------------------------------

    async def _snapshot(self) -> Snapshot:
        """The catalog as of a moment ago; a large root is looked at in the background."""
        if self._looking is None and time.monotonic() - self._looked > FRESH_S:
            self._looking = asyncio.create_task(asyncio.to_thread(self.catalog.refresh))
        if self._looking is not None:
            patience_s = PATIENCE_S if self.catalog.snapshot.rows else None
            done, _ = await asyncio.wait([self._looking], timeout=patience_s)
            if done:
                task, self._looking, self._looked = self._looking, None, time.monotonic()
                return await task if task else self.catalog.snapshot
        return self.catalog.snapshot

    async def _on_artifact(self, request: HttpRequest, work: Callable[..., object]) -> Response:
        row = (await self._snapshot()).row(request.path_params["address"])
        path = request.query_params.get("path", "")
        return _json(await asyncio.to_thread(work, self.root, row, path))

    def _result(self, job: Job, offset: int, count: int) -> dict[str, Any]:
        answer = job.answer
        found: dict[str, Any] = {"id": job.id, "state": job.state, "sql": job.sql, "error": job.error}
        found |= {"columns": [], "rows": [], "row_count": None, "seconds": None, "cached": job.cached}
        if job.plan is not None:
            lines = [[line] for line in job.plan.splitlines()]
            found |= {
                "columns": [{"name": "plan", "type": "VARCHAR"}],
                "rows": lines,
                "row_count": len(lines),
            }
        elif answer is not None:
            rows = self.queries.rows(job, offset, min(count, 10_000)) if count else []
            found |= {"columns": answer.columns, "rows": rows}
            found |= {"row_count": answer.row_count, "seconds": answer.seconds}
        return found

    def _download(self, job: Job, form: str) -> Response:
        if job.answer is None:
            raise HTTPException(409, f"query {job.id} has no result: it is {job.state}")
        data, kind = self.queries.file(job).read_bytes(), "application/vnd.apache.parquet"
        if form == "csv":
            data, kind = previews.as_csv(data), "text/csv; charset=utf-8"
        return Response(
            data, media_type=kind, headers={"content-disposition": f'attachment; filename="{job.id}.{form}"'}
        )


class Guard:
    """Lets a request pass with the service's token; the answer to any other names what is missing (V7)."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] == "/health":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._wanted):
            await self.app(scope, receive, send)
            return
        wrong = "is not this service's" if given else "is missing"
        error = f"The credential {wrong}: send `Authorization: Bearer …` with the value of {VARIABLE}."
        await _json({"error": error}, 401, {"www-authenticate": "Bearer"})(scope, receive, send)


def build_app(root: Path, token: str) -> ASGIApp:
    """The service over a root, guarded by a token."""
    service = Service(root)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        service.queries.close()

    get = {
        "/health": service.health,
        "/result/{id}": service.result,
        "/queries": service.log,
        "/tables": service.tables,
        "/artifacts": service.artifacts,
        "/artifact/{address:path}": service.artifact,
        "/lineage/{address:path}": service.lineage,
        "/files/{address:path}": service.files,
        "/preview/{address:path}": service.preview,
        "/log/{address:path}": service.output,
        "/diff": service.diff,
        "/corpora": service.all_corpora,
        "/corpus/{address:path}": service.corpus,
        "/egress": service.egress,
    }
    routes = [Route("/query", service.query, methods=["POST"]), *(Route(p, e) for p, e in get.items())]
    handlers: Any = {LmlabError: _refused, HTTPException: _http_error, Exception: _crash}
    return Guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan), token)


async def _refused(_: HttpRequest, error: Exception) -> Response:
    kinds = {ConfigError: 400, ArtifactError: 404, InputError: 422, HostError: 503}
    return _json(
        {"error": str(error)}, next((code for kind, code in kinds.items() if isinstance(error, kind)), 500)
    )


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _crash(_: HttpRequest, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: {error}"}, 500)


async def _body(request: HttpRequest) -> dict[str, Any]:
    data = await request.body()
    if len(data) > BODY_BYTES:
        raise HTTPException(413, f"the body is larger than {BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise HTTPException(400, f"the body is no JSON object: {error}") from error


def _request(body: dict[str, Any]) -> query_jobs.Request:
    try:
        return msgspec.convert(body, query_jobs.Request)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"the body does not fit: {error}") from error


def _number(request: HttpRequest, name: str, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not text.isdigit():
        raise HTTPException(400, f"{name}={text!r} is no whole number from 0 on")
    return int(text)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def main() -> None:
    """Serve until SIGTERM; ends with the process that started it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    flags = parser.parse_args()
    process.die_with_owner(os.getppid())
    token = environ.get(VARIABLE)
    if token is None:
        raise ConfigError(
            f"{VARIABLE} is not set, so anybody could read everything. Set it to a secret of your own."
        )
    import uvicorn

    with socket.create_server((flags.host, flags.port)) as listener:
        app = build_app(choose_root(flags.root), token)
        sys.stdout.write("http://{}:{}\n".format(*listener.getsockname()[:2]))
        sys.stdout.flush()
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
