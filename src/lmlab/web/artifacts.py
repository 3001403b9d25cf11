"""Pages about what is stored: the overview, the table, one artifact, a difference, a report."""

import asyncio
import re
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lmlab.artifacts.identity import split_address
from lmlab.reports.command import command
from lmlab.web.client import Service, ServiceError, later

PAGES = "pages"
"""The name under which the pages' own queries stand in the log of queries."""
BAD = "failed,dead,corrupt,stopped"
PAGE_ROWS, PREVIEW_ROWS, CSV_ROWS = 50, 20, 1000
# A report's own policy: no script, no request, its styles inside the file; its links may be followed.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
DISK = """SELECT result_type, count(*) AS artifacts, sum(files)::BIGINT AS files, sum(bytes)::BIGINT AS bytes
FROM artifacts WHERE bytes IS NOT NULL GROUP BY result_type ORDER BY bytes DESC"""
HTML_FILE = re.compile(r"[\w.-]+\.html")
REPORT = "SELECT content FROM read_text('{{ADDRESS}}/FILE')"

Facts = dict[str, Any]


def address_of(request: Request) -> str:
    """The checked `name@version` of a path; ConfigError (a 404) for anything else."""
    name, version = split_address(request.path_params["address"])
    if version is None:
        raise ServiceError(404, f"{name} lacks its version. Ask for {name}@VERSION.")
    return f"{name}@{version}"


def number(request: Request, name: str, default: int, most: int = 10**9) -> int:
    """A whole number of the query, within bounds; the default for anything else."""
    given = request.query_params.get(name, "")
    return min(int(given[:12]), most) if given.isascii() and given.isdigit() else default


async def overview(service: Service, _: Request) -> Facts:
    """What failed first, what runs, what was built last, what takes the space."""
    disk = later(service.query(DISK, wait_s=10, user=PAGES))
    recent, bad, running = await asyncio.gather(
        service.get("/artifacts", state="built,adopted", sort="-finished", size=12),
        service.get("/artifacts", state=BAD, size=20),
        service.get("/artifacts", state="running"),
    )
    facts = {"states": recent["states"], "total": sum(recent["states"].values()), "bad_total": bad["total"]}
    facts |= {"bad": bad["rows"], "running": running["rows"], "recent": recent["rows"]}
    return {**facts, "disk": disk, "disk_sql": DISK}


async def listing(service: Service, request: Request) -> Facts:
    """The table of artifacts, filtered and sorted by the service; as CSV all rows of the filter."""
    asked = {name: request.query_params.get(name) for name in ("q", "state", "step")}
    sort, page = request.query_params.get("sort") or "-finished", max(1, number(request, "page", 1))
    size = CSV_ROWS if "csv" in request.query_params else PAGE_ROWS
    found = await service.get("/artifacts", **asked, sort=sort, page=page, size=size)
    pages, rows = max(1, -(-found["total"] // size)), found["rows"]
    for further in range(2, pages + 1) if size == CSV_ROWS else ():
        rows += (await service.get("/artifacts", **asked, sort=sort, page=further, size=size))["rows"]
    return {**found, "artifacts": rows, "sort": sort, "pages": pages}


async def one(service: Service, request: Request) -> Facts:
    """One artifact; each tab asks only for what it shows."""
    address, tab = address_of(request), request.query_params.get("tab", "summary")
    facts = await service.get(f"/artifact/{address}")
    record = facts["record"] or {"result": {}, "result_type": None, "provenance": {"argv": ()}}
    facts |= {"tab": tab, "command": command(record["provenance"]["argv"]), "report": _html_file(record)}
    if tab == "config":
        older = [one for one in facts["versions"] if one["finished"] and one["address"] != address]
        older = [one for one in older if facts["record"] and one["finished"] < record["finished"]]
        previous = max(older, key=lambda one: one["finished"], default={"address": None})["address"]
        found = await service.get("/diff", old=previous, new=address) if previous else {"sections": {}}
        facts |= {"previous": previous, "changes": found["sections"].get("config", [])}
    elif tab == "files":
        path, file = request.query_params.get("path", ""), request.query_params.get("file")
        offset, inside = number(request, "offset", 0), f"{path}/{file}" if path else file
        asked = {"path": inside, "offset": offset, "count": PREVIEW_ROWS}
        listed = await service.get(f"/files/{address}", path=path)
        names = [one["name"] for one in listed["files"]] if file else listed["files"] + listed["folders"]
        if (file and file not in names) or (path and not names):
            raise ServiceError(404, f"{address} has no file {inside or path!r}. Its page lists what it has.")
        facts |= {"listing": listed, "file": file, "offset": offset, "step": PREVIEW_ROWS}
        facts["preview"] = later(service.get(f"/preview/{address}", **asked)) if file else None
    elif tab == "log":
        facts["output"] = await service.get(f"/log/{address}", offset=number(request, "offset", 0))
    return facts


async def diff(service: Service, request: Request) -> Facts:
    """How two artifacts differ, by section."""
    asked = {side: request.query_params.get(side, "") for side in ("old", "new")}
    return {"sections": None, **asked, **(await service.get("/diff", **asked) if all(asked.values()) else {})}


async def report(service: Service, request: Request) -> Response:
    """A report's file at NAME/VERSION/FILE, where its links to the folders of other artifacts work too."""
    given = request.path_params["address"]
    if "@" in given:
        address = address_of(request)
        file = _html_file((await service.get(f"/artifact/{address}"))["record"] or {"result": {}})
        if file is None:
            raise ServiceError(404, f"{address} holds no HTML report. Its page shows its files.")
        return RedirectResponse(quote(f"{address.rpartition('/')[2].replace('@', '/')}/{file}"), 302)
    name, version, file = given.rsplit("/", 2) if given.count("/") > 1 else ("", "", "")
    split_address(address := f"{name}@{version}")
    if not file:
        return RedirectResponse("../" * given.count("/") + f"../artifact/{address}", 302)
    if not HTML_FILE.fullmatch(file):
        raise ServiceError(404, f"{file} is no HTML file. The page of {address} shows its files.")
    sql = REPORT.replace("ADDRESS", address).replace("FILE", file)
    found = await service.query(sql, wait_s=10, user=PAGES)
    if not found["rows"]:
        raise ServiceError(404, found["error"] or f"{address} holds no file {file}.")
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(found["rows"][0][0], headers=headers, media_type="text/html")


def _html_file(record: Facts) -> str | None:
    file = record["result"].get("file")
    return file if isinstance(file, str) and HTML_FILE.fullmatch(file) else None
