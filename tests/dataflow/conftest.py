"""Task functions that worker processes can import: they live in a file beside the tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def importable_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
