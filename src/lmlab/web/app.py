"""The ASGI app: which page answers which path, and headers that keep foreign content out.

Every page is `gather(service, request) -> facts` and a template. The pages hold no state and no credentials:
all they know comes from the query service. As a program (`python -m lmlab.web.app SOCKET_FD HOST…`) it serves
on a socket that its owner holds.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmlab.core import environ, process
from lmlab.core.errors import LmlabError
from lmlab.reports.palette import style_sheet
from lmlab.web import artifacts, corpora, lineage, render, sql
from lmlab.web.client import Service, ServiceError

Gather = Callable[[Service, Request], Awaitable[Mapping[str, Any] | Response]]

PAGES: dict[str, tuple[str, Gather]] = {
    "/": ("overview.html", artifacts.overview),
    "/artifacts": ("artifacts.html", artifacts.listing),
    "/artifact/{address:path}": ("artifact.html", artifacts.one),
    "/diff": ("diff.html", artifacts.diff),
    "/lineage/{address:path}": ("lineage.html", lineage.graph),
    "/corpora": ("corpora.html", corpora.leaderboard),
    "/corpus/{address:path}": ("corpus.html", corpora.one),
    "/sql": ("sql.html", sql.editor),
    "/egress": ("egress.html", sql.egress),
    "/report/{address:path}": ("error.html", artifacts.report),
}
ASSETS = {"web.css": "text/css", "web.js": "text/javascript"}
HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    b"object-src 'none'; frame-ancestors 'self'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cache-control": b"no-store",
}
SHUTDOWN_S = 3


def build_app(url: str, token: str, hosts: Sequence[str] = ("*",)) -> ASGIApp:
    """The site over the query service at `url`, for browsers that ask for one of `hosts`."""
    service = Service(url, token)

    def endpoint(template: str, gather: Gather) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            facts = await gather(service, request)
            if isinstance(facts, Response):
                return facts
            table = request.query_params.get("csv", "")
            rows = facts.get(table)
            if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
                return render.csv_file(table, rows)
            return await render.page(template, request, facts)

        return answer

    routes = [Route(path, endpoint(*page)) for path, page in PAGES.items()]
    app = Starlette(
        routes=[*routes, Route("/assets/{name}", _asset)],
        exception_handlers=dict.fromkeys((ServiceError, HTTPException, LmlabError, Exception), _failed),
    )
    # A redirect would name the host that the browser claims to talk to.
    app.router.redirect_slashes = False
    return Guard(app, hosts)


class Guard:
    """Refuses names that are not ours (a foreign page whose name leads to us) and adds the headers."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {key for key, _ in message["headers"]}
                message["headers"] += [pair for pair in HEADERS.items() if pair[0] not in names]
            await send(message)

        given = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        name = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
        if scope["type"] != "http" or "*" in self._hosts or name in self._hosts:
            await self._app(scope, receive, send_guarded)
            return
        refusal = f"This site is not {name!r}. Start it with --allow-host {name} if it should be."
        await PlainTextResponse(refusal, 421)(scope, receive, send_guarded)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404)
    return Response(_content(name), media_type=ASSETS[name], headers={"Cache-Control": "max-age=300"})


@cache
def _content(name: str) -> str:
    own = files("lmlab.web").joinpath(f"assets/{name}").read_text()
    return style_sheet() + own if name.endswith(".css") else own


async def _failed(request: Request, error: Exception) -> Response:
    """A page that says what is wrong: ours (an address that can't be) or as the service put it."""
    status = 404 if isinstance(error, LmlabError) else getattr(error, "status_code", 500)
    is_unknown = isinstance(error, HTTPException) and status == 404
    message = f"There is no page {request.url.path}." if is_unknown else str(error)
    return await render.page("error.html", request, {"status": status, "message": message}, status)


def main(argv: Sequence[str]) -> None:
    """Serve until told to stop."""
    process.die_with_owner(os.getppid())
    import uvicorn

    app = build_app(environ.get("LMLAB_QUERY_URL") or "", environ.get("LMLAB_QUERY_TOKEN") or "", argv[1:])
    quiet = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    config = uvicorn.Config(app, timeout_graceful_shutdown=SHUTDOWN_S, **quiet)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(argv[0]))])


if __name__ == "__main__":
    main(sys.argv[1:])
