"""The query service: SQL and views over one root as JSON, in the only process with keys to the store.

    LMLAB_QUERY_TOKEN=… python -m lmlab.artifacts.query --root R --port 0

Every route but /health asks for that token. No answer holds an absolute link: it works behind any prefix.
"""

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmlab.artifacts import browsing, corpus_views
from lmlab.artifacts.catalog import Catalog, Snapshot
from lmlab.artifacts.query_jobs import Ask, Queries
from lmlab.core import environ, process
from lmlab.core.errors import ArtifactError, ConfigError, HostError, InputError, LmlabError
from lmlab.storage import Path, choose_root

Endpoint = Callable[[Request], Awaitable[Response]]
log = logging.getLogger(__name__)
VARIABLE = "LMLAB_QUERY_TOKEN"
FRESH_S, PATIENCE_S, RARELY = 2.0, 0.3, 20
"""The root is looked at anew after FRESH_S, or RARELY times as long as it took: a look at a bucket costs.
A request waits PATIENCE_S for it, then takes the last."""
SHUTDOWN_S = 3
FORMS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
STATUS = {ConfigError: 400, ArtifactError: 404, InputError: 422, HostError: 503, LmlabError: 500}
VIEWS: dict[str, Callable[..., Any]] = {
    "/artifacts": browsing.listing,
    "/artifact/{address:path}": browsing.artifact,
    "/lineage/{address:path}": browsing.lineage,
    "/diff": browsing.diff,
    "/files/{address:path}": browsing.files,
    "/preview/{address:path}": browsing.preview,
    "/log/{address:path}": browsing.output,
    "/egress": browsing.egress,
    "/corpora": corpus_views.Leaderboard(),
    "/corpus/{address:path}/samples": corpus_views.samples,
    "/corpus/{address:path}": corpus_views.stages,
}
EXAMPLES = """
-- The newest artifacts
SELECT address, state, step, bytes, to_timestamp(finished) AS finished
FROM artifacts ORDER BY finished DESC LIMIT 20
-- What failed or died
SELECT address, state, error, owner FROM artifacts WHERE state IN ('failed', 'dead', 'stopped')
-- Time and bytes by step
SELECT step, count(*) AS artifacts, sum(seconds) AS seconds, sum(bytes) AS bytes
FROM artifacts GROUP BY step ORDER BY seconds DESC
-- What is used most
SELECT source, count(*) AS users FROM edges WHERE kind = 'input' GROUP BY source ORDER BY users DESC
-- A field of all recipes
SELECT address, config->>'$.type' AS type, config->>'$.run.seed' AS seed FROM artifacts
-- Transfers between regions by user
SELECT "user", sum(bytes) AS bytes FROM transfers GROUP BY ALL ORDER BY bytes DESC
-- The slowest queries
SELECT sql, seconds, rows, error FROM queries ORDER BY seconds DESC LIMIT 20
-- Documents of a corpus by domain
SELECT meta->>'$.domain' AS domain, count(*) AS documents, sum(strlen(text)) AS bytes
FROM '{{CORPUS}}/train/*.parquet' GROUP BY ALL ORDER BY bytes DESC
-- Why documents were rejected
SELECT split_part(reason, ':', 1) AS why, count(*) AS documents
FROM '{{CORPUS}}/rejected/*/*.parquet' GROUP BY ALL ORDER BY documents DESC
"""


class Service:
    """The endpoints over one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.catalog = Catalog(root)
        self.queries = Queries(self.catalog)
        self._next_look = 0.0
        self._looking: asyncio.Task[Snapshot] | None = None

    async def query(self, request: Request) -> Response:
        """POST /query {"sql", "use_cache", "explain", "timeout_s"}: 202 and the id of the result."""
        try:
            ask = msgspec.json.decode(await request.body(), type=Ask)
        except msgspec.DecodeError as error:
            raise ConfigError(f'The body is wrong ({error}). Send {{"sql": "SELECT …"}} as JSON.') from error
        user = ask.user or request.headers.get("x-lmlab-user", "")
        await self._snapshot()
        job = await asyncio.to_thread(self.queries.submit, replace(ask, user=user))
        return _json({"id": job.id}, 202)

    async def result(self, request: Request) -> Response:
        """GET /result/{id}[?offset&count], /result/{id}.csv, /result/{id}.parquet."""
        identifier, _, form = request.path_params["id"].partition(".")
        job = await asyncio.to_thread(self.queries.get, identifier)
        if job is None or form not in ("", *FORMS):
            raise HTTPException(404, f"There is no query {identifier}: it is unknown, or older than a week.")
        if form:
            file = await asyncio.to_thread(self.queries.file, job, form)
            headers = {"content-disposition": f'attachment; filename="{job.id}.{form}"'}
            return StreamingResponse(file.chunks(), headers=headers, media_type=FORMS[form])
        asked = request.query_params
        offset, count = browsing.number(asked, "offset", 0), browsing.number(asked, "count", 10_000)
        rows = await asyncio.to_thread(self.queries.page, job, offset, count)
        return _json(msgspec.to_builtins(job) | {"rows": rows})

    async def log(self, _: Request) -> Response:
        """GET /queries: what was asked, the newest first."""
        return _json({"rows": self.queries.log.rows()[:-1001:-1]})

    async def tables(self, _: Request) -> Response:
        """GET /tables: what SQL can name, and queries to begin with."""
        snapshot = await self._snapshot()
        found = await asyncio.to_thread(self.queries.tables, snapshot)
        listed = [
            {"name": name, "columns": [{"name": f.name, "type": str(f.type)} for f in table.schema]}
            for name, table in found.items()
        ]
        return _json({"tables": listed, "examples": _examples(snapshot)})

    async def health(self, _: Request) -> Response:
        """GET /health: open to all, says only that it lives."""
        return _json({"status": "ok"})

    def view(self, view: Callable[..., Any]) -> Endpoint:
        """The endpoint of a view: its parameters are those of the path and of the query string."""

        async def answer(request: Request) -> Response:
            asked = {**request.query_params, **request.path_params}
            return _json(await asyncio.to_thread(view, self.root, await self._snapshot(), asked))

        return answer

    async def _snapshot(self) -> Snapshot:
        """The catalog as of a moment ago; a large root is looked at in the background."""
        now = time.monotonic()
        if self._looking is None and now > self._next_look:
            self._looking = asyncio.create_task(asyncio.to_thread(self.catalog.refresh))
            self._looking.add_done_callback(partial(self._seen, now))
        if self._looking is not None:
            patience_s = PATIENCE_S if self.catalog.snapshot.rows else None
            done, _ = await asyncio.wait([self._looking], timeout=patience_s)
            for task in done:
                task.result()
        return self.catalog.snapshot

    def _seen(self, began: float, looking: asyncio.Task[Snapshot]) -> None:
        now = time.monotonic()
        self._looking, self._next_look = None, now + max(FRESH_S, RARELY * (now - began))
        looking.exception()

    def warm_up(self) -> None:
        """Look at the root and load what the first query would wait for."""
        with contextlib.suppress(LmlabError):
            self.queries.tables(self.catalog.refresh(), ())


class Guard:
    """Lets a request pass with the service's token; the answer to any other names what is missing (V7)."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or scope["path"] == "/health" or hmac.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
            return
        wrong = "is not this service's" if given else "is missing"
        error = f"The credential {wrong}: send `Authorization: Bearer …` with the value of {VARIABLE}."
        await _json({"error": error}, 401, {"www-authenticate": "Bearer"})(scope, receive, send)


def build_app(root: Path, token: str) -> ASGIApp:
    """The service over a root, guarded by a token."""
    service = Service(root)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        threading.Thread(target=service.warm_up, daemon=True).start()
        yield
        service.queries.close()

    own = {"/result/{id}": service.result, "/queries": service.log, "/tables": service.tables}
    own |= {"/health": service.health, **{path: service.view(view) for path, view in VIEWS.items()}}
    routes = [Route(path, _safely(endpoint)) for path, endpoint in own.items()]
    routes += [Route("/query", _safely(service.query), methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _failed}, lifespan=lifespan)
    # A redirect would name an address that a proxy's clients can't reach.
    app.router.redirect_slashes = False
    return Guard(app, token)


def _safely(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose errors are answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - the boundary of a request
            return await _failed(request, error)

    return answer


async def _failed(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, LmlabError):
        return _json({"error": str(error)}, status)
    log.error("a request failed", exc_info=error)
    return _json({"error": f"{type(error).__name__}: {error}"}, status)


def _examples(snapshot: Snapshot) -> list[dict[str, str]]:
    """Those about a corpus only if there is one."""
    corpora = [row for row in snapshot.rows.values() if row.result_type == "Corpus"]
    newest = max(corpora, key=lambda row: row.finished or 0.0, default=None)
    parts = [part.partition("\n") for part in EXAMPLES.split("-- ")[1:]]
    return [
        {"title": title, "sql": sql.strip().replace("CORPUS", newest.address if newest else "")}
        for title, _, sql in parts
        if newest or "CORPUS" not in sql
    ]


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
        sys.exit(f"ConfigError: {VARIABLE} is not set, so anybody could read everything. Set it to a secret.")
    import uvicorn

    with socket.create_server((flags.host, flags.port)) as listener:
        # Else an answer waits 40 ms for the acknowledgement of its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        quiet = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
        app = build_app(choose_root(flags.root), token)
        config = uvicorn.Config(app, timeout_graceful_shutdown=SHUTDOWN_S, **quiet)
        sys.stdout.write("http://{}:{}\n".format(*listener.getsockname()[:2]))
        sys.stdout.flush()
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
