"""Shape checking for the jax packages, and folders that no test shares with the user's own."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from lmlab.core.shapecheck import install_if_asked
from quickstart import run_small

os.environ.setdefault("LMLAB_CHECK_SHAPES", "1")
install_if_asked()

# No deadline: two cores are shared with the programs that tests start. CI draws the same examples each time.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")


@pytest.fixture(autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's root; the cache is shared, so that kernels compile once."""
    monkeypatch.setenv("LMLAB_ROOT", str(tmp_path_factory.mktemp("root")))


@dataclass(frozen=True)
class Quickstart:
    """A root that holds the whole small quick start, and the command that built it."""

    root: Path
    first: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def small_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """Built once per session: workers that ask at the same time share it, by the claims it is made with."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    root = shared / "quickstart"
    root.mkdir(exist_ok=True)
    return Quickstart(root, run_small(root))
