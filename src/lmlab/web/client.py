"""The only way from the pages to stored data: HTTP to the query service, with its token.

An unreachable service is an error that says so within seconds, never a hang.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx

CONNECT_S, TOTAL_S, POLL_S = 2.0, 25.0, 0.02
MOST_ROWS = 100


class ServiceError(Exception):
    """What the query service refused, or that it can't be reached; `status_code` goes to the browser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code, self.message = status, message


class Service:
    """A client of one query service."""

    def __init__(self, url: str, token: str) -> None:
        headers, timeout = {"Authorization": f"Bearer {token}"}, httpx.Timeout(TOTAL_S, connect=CONNECT_S)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, trust_env=False)

    async def get(self, endpoint: str, /, **params: Any) -> Any:
        """The JSON of one endpoint; parameters that are None or empty are left out."""
        given = {name: value for name, value in params.items() if value not in (None, "")}
        return (await self.fetch("GET", endpoint, params=given)).json()

    async def query(self, sql: str, timeout_s: float = 30, wait_s: float = 0.25, user: str = "") -> Any:
        """Run a SELECT: its first rows, or its state `running` if that is not there after `wait_s`."""
        asked = await self.fetch(
            "POST", "/query", json={"sql": sql, "timeout_s": timeout_s}, headers={"X-Lmlab-User": user}
        )
        result = f"/result/{asked.json()['id']}"
        deadline = time.monotonic() + wait_s
        while (found := await self.get(result, count=MOST_ROWS))["state"] == "running":
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        return found

    async def fetch(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One bounded request. Raises ServiceError for any answer but success."""
        try:
            async with asyncio.timeout(TOTAL_S):
                answer = await self._http.request(method, quote(path, safe="/@"), **request)
        except (httpx.TransportError, TimeoutError):
            raise ServiceError(503, "The query service is restarting.") from None
        if not answer.is_success:
            raise ServiceError(answer.status_code, answer.json()["error"])
        return answer


def later(work: Awaitable[Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Starts it now; a template awaits it when the page is on its way, too late for an error page."""

    async def told() -> dict[str, Any]:
        try:
            return {"error": None, "found": await work}
        except ServiceError as error:
            return {"error": error.message, "found": None}

    task = asyncio.create_task(told())
    return lambda: task
