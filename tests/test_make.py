"""`make run` as a stranger types it: a fresh clone, an empty folder, an empty cache, a new environment."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart import PROJECT, VERSION, folder, record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@dataclass(frozen=True)
class Clone:
    """A clone in which `make run` has ended."""

    path: Path
    printed: str
    seconds: float

    @property
    def root(self) -> Path:
        return self.path / ".lmlab"

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        return make(self.path, target)


def make(clone: Path, target: str) -> subprocess.CompletedProcess[str]:
    ours = ("LMLAB_ROOT", "LMLAB_CHECK_SHAPES", "LMLAB_RUN_ID", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env["LMLAB_CACHE"] = str(clone.parent / "cache")
    return subprocess.run(
        ["make", target], cwd=clone, env=env, capture_output=True, text=True, timeout=2300, check=False
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    path = tmp_path_factory.mktemp("stranger") / "lmlab"
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(path)], check=True)
    started = time.monotonic()
    done = make(path, "run")
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-6000:]
    return Clone(path, told, time.monotonic() - started)


def test_a_stranger_gets_a_report_and_the_model_beats_zstd_and_the_unigram(clone):
    assert "report.html" in clone.printed
    scores = json.loads((folder(clone.root, "evals/quickstart") / "scores.json").read_text())
    macro = scores["macro"]
    assert macro["grug"] < macro["unigram"]
    assert macro["grug"] < macro["zstd -19"]


def test_the_second_make_run_runs_nothing(clone):
    again = clone.make("run")
    assert again.returncode == 0
    assert "started" not in again.stdout
    assert "Installing" not in again.stdout


def test_no_step_left_anything_half_written(clone):
    assert not [path for path in clone.root.rglob("*") if path.name.endswith((".tmp", ".part"))]


@pytest.mark.skipif(
    shutil.which("chromium") is None and os.environ.get("CI") != "true", reason="needs Debian's chromium"
)
def test_the_report_opens_from_disk_offline_without_a_failed_request(clone):
    from playwright.sync_api import sync_playwright

    report = (
        clone.root
        / "reports/quickstart"
        / VERSION
        / record(clone.root, "reports/quickstart")["result"]["file"]
    )
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url[:200]}"))
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.goto(f"file://{report}")
        charts = page.locator("svg").count()
        browser.close()
    assert not problems
    assert charts >= 4
