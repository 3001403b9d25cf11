"""The query service as a real process on a free port, and a client that waits for answers."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from lmlab.storage import Path

TOKEN = "a-secret-of-the-tests"


class Client:
    """Speaks to one service; `process` is it."""

    def __init__(self, http: httpx.Client, process: subprocess.Popen[str]) -> None:
        self.http = http
        self.process = process

    def get(self, path: str, status: int = 200, /, **params: object) -> Any:
        answer = self.http.get(path, params=params)
        assert answer.status_code == status, answer.text
        return answer.json()

    def ask(self, sql: str, status: int = 202, **options: object) -> Any:
        answer = self.http.post("query", json={"sql": sql, **options})
        assert answer.status_code == status, answer.text
        return answer.json()

    def wait(self, identifier: str, **params: object) -> Any:
        deadline = time.monotonic() + 30
        while (found := self.get(f"result/{identifier}", **params))["state"] == "running":
            assert time.monotonic() < deadline, f"query {identifier} never ends"
            time.sleep(0.01)
        return found

    def sql(self, sql: str, **options: object) -> Any:
        return self.wait(self.ask(sql, **options)["id"])

    def rows(self, sql: str) -> list[list[Any]]:
        found = self.sql(sql)
        assert found["error"] is None, found["error"]
        return found["rows"]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def service(root: Path, **environment: str) -> Iterator[Client]:
    """Serve a root until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmlab.artifacts.query", "--root", str(root), "--port", "0"],
        env={**os.environ, "LMLAB_QUERY_TOKEN": TOKEN, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url, headers=headers, timeout=40, trust_env=False) as http:
            yield Client(http, process)
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()
