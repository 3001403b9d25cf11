"""A root per test, and one call that plans and runs handles below it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path as LocalPath

import pytest

from lmlab.artifacts.building import Event
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import Plan, make_plan
from lmlab.artifacts.runner import Options, Report, execute
from lmlab.storage import Path

VERSION = "2026.12.01"


@pytest.fixture
def root(tmp_path: LocalPath) -> Path:
    return Path(tmp_path / "root")


@pytest.fixture
def diary(tmp_path: LocalPath) -> LocalPath:
    path = tmp_path / "diary"
    path.touch()
    return path


@pytest.fixture
def planned(root: Path) -> Callable[..., Plan]:
    def make(*handles: object, version: str | None = VERSION, where: Path | None = root, **kwargs) -> Plan:
        return make_plan(collect(list(handles), Versions(version)), where, **kwargs)

    return make


@pytest.fixture
def run(root: Path, planned: Callable[..., Plan]) -> Callable[..., Report]:
    def go(
        *handles: object, version: str | None = VERSION, options: Options | None = None, **kwargs
    ) -> Report:
        events: list[Event] = []
        report = execute(planned(*handles, version=version, **kwargs), root, options, events.append)
        report.events = events
        return report

    return go


@pytest.fixture
def run_process(tmp_path: LocalPath, diary: LocalPath) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`lmlab run FILE …` of an experiment beside the tests as a process, killed at the latest at the end."""
    started: list[subprocess.Popen[str]] = []
    here = LocalPath(__file__).parent

    def go(
        file: str, *words: str, stderr: int = subprocess.STDOUT, **variables: str
    ) -> subprocess.Popen[str]:
        path = f"{here}:{os.environ.get('PYTHONPATH', '')}"
        places = {"LMLAB_ROOT": str(tmp_path / "root"), "DIARY": str(diary), "PYTHONPATH": path}
        command = [sys.executable, "-m", "lmlab.cli.main", "run", str(here / file), "--version", VERSION]
        child = subprocess.Popen(
            [*command, *words],
            env={**os.environ, **places, **variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        started.append(child)
        return child

    yield go
    for child in started:
        child.kill()
        child.communicate()
