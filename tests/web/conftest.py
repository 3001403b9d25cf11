"""The whole site as processes over a root that a real run made, and a real browser."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as LocalPath

import httpx
import pytest
from web_steps import build_lab

SECRET = {"AWS_SECRET_ACCESS_KEY": "not-for-pages", "GOOGLE_APPLICATION_CREDENTIALS": "/secret.json"}


@dataclass
class Site:
    """A running `lmlab web`."""

    process: subprocess.Popen[str]
    url: str
    root: LocalPath

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=30)

    def settled(self, path: str) -> httpx.Response:
        """The page once the query service answers, and knows all that lies below the root."""
        for _ in range(300):
            answer = self.get(path)
            if answer.status_code != 503:
                break
            time.sleep(0.05)
        return answer

    def children(self) -> dict[str, int]:
        """Process ids of the two children, by what they run."""
        found = {}
        for folder in LocalPath("/proc").iterdir():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                words = (folder / "cmdline").read_text().split("\0")
            except (OSError, IndexError):
                continue
            if parent == str(self.process.pid) and "-m" in words:
                found[words[words.index("-m") + 1]] = int(folder.name)
        return found


@contextmanager
def served(root: LocalPath, *flags: str) -> Iterator[Site]:
    """`lmlab web` on a free port, with credentials in its environment that the pages must not get."""
    command = [sys.executable, "-m", "lmlab.cli.main", "web", "--port", "0", "--root", str(root), *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **SECRET}, process_group=0
    ) as started:
        try:
            line = started.stdout.readline()
            found = re.search(r"http://\S+[^/ ]", line)
            assert found, f"no address in {line!r}"
            yield Site(started, found.group().rstrip("/"), root)
        finally:
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
                started.wait(20)


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> LocalPath:
    """A root with three levels of artifacts, failures, hostile text, a corpus and a report."""
    root = tmp_path_factory.mktemp("lab") / "root"
    build_lab(root)
    return root


@pytest.fixture(scope="session")
def site(lab) -> Iterator[Site]:
    with served(lab) as running:
        running.settled("/")
        yield running


@pytest.fixture(scope="session")
def serve() -> Callable:
    return served
