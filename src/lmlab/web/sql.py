"""Pages that ask tables: SQL over the catalog and the data, and what was read from other regions."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from lmlab.web.artifacts import PAGES, Facts, number
from lmlab.web.client import MOST_ROWS, Service, ServiceError

TIMEOUTS_S = (10, 30, 120, 600)
DOWNLOADS = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


async def editor(service: Service, request: Request) -> Facts | Response:
    """The editor, the result of the query in the URL, and what was asked before."""
    query = request.query_params
    sql, form, offset = query.get("sql", "").strip(), query.get("download"), number(request, "offset", 0)
    timeout_s = number(request, "timeout", 30, TIMEOUTS_S[-1])
    # A foreign page may link here, but its link must not make the service work.
    is_foreign = request.headers.get("sec-fetch-site") == "cross-site"
    result = await _result(service, sql, query.get("id", ""), timeout_s) if sql and not is_foreign else None
    if result and result["state"] == "done":
        if form in DOWNLOADS:
            file = await service.fetch("GET", f"/result/{result['id']}.{form}")
            headers = {"Content-Disposition": f'attachment; filename="result.{form}"'}
            return Response(file.content, media_type=DOWNLOADS[form], headers=headers)
        if offset:
            result = await service.get(f"/result/{result['id']}", offset=offset, count=MOST_ROWS)
    tables, log = await asyncio.gather(service.get("/tables"), service.get("/queries"))
    asked = [row for row in log["rows"] if row["user"] != PAGES]
    facts = {"sql": sql, "result": result, "offset": offset, "page_rows": MOST_ROWS, "queries": asked}
    return {**tables, **facts, "timeout_s": timeout_s, "timeouts": TIMEOUTS_S}


async def _result(service: Service, sql: str, ident: str, timeout_s: int) -> Facts:
    """A query that is known by its id, else the SQL anew: a restarted service forgets what ran."""
    try:
        if ident.isalnum():
            return await service.get(f"/result/{ident}", count=MOST_ROWS)
        return await service.query(sql, timeout_s)
    except ServiceError as error:
        if error.status_code == 404 and ident:
            return await _result(service, sql, "", timeout_s)
        if error.status_code in (400, 404):
            return {"id": "", "state": "failed", "error": error.message}
        raise


async def egress(service: Service, request: Request) -> Facts:
    """What was read from other regions in the last hours, by whom."""
    hours = number(request, "hours", 24, 24 * 365)
    return {"hours": hours, **await service.get("/egress", hours=hours)}
