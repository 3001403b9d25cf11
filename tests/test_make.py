"""`make run` as a stranger types it: a fresh clone, an empty folder, an empty cache, a new environment."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from quickstart import PROJECT, folder, record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def make(clone: Path, target: str) -> subprocess.CompletedProcess[str]:
    ours = ("LMLAB_ROOT", "LMLAB_CHECK_SHAPES", "LMLAB_RUN_ID", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env["LMLAB_CACHE"] = str(clone.parent / "cache")
    return subprocess.run(
        ["make", target], cwd=clone, env=env, capture_output=True, text=True, timeout=2300, check=False
    )


def test_a_stranger_types_make_run_twice_and_opens_the_report(tmp_path):
    # One test, since workers would each make their own clone.
    clone = tmp_path / "lmlab"
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(clone)], check=True)
    first = make(clone, "run")
    assert first.returncode == 0, (first.stdout + first.stderr)[-6000:]
    assert "report.html" in first.stdout
    root = clone / ".lmlab"
    macro = json.loads((folder(root, "evals/quickstart") / "scores.json").read_text())["macro"]
    assert macro["grug"] <= 2.2
    assert macro["grug"] < min(macro["unigram"], macro["zstd -19"])
    assert not [path for path in root.rglob("*") if path.name.endswith((".tmp", ".part"))]

    second = make(clone, "run")
    assert second.returncode == 0
    assert "started" not in second.stdout
    assert "Installing" not in second.stdout

    report = folder(root, "reports/quickstart") / record(root, "reports/quickstart")["result"]["file"]
    charts, problems = opened_offline(report)
    assert charts >= 4
    assert not problems


def opened_offline(page_file: Path) -> tuple[int, list[str]]:
    """Open a file in headless Chromium with networking off: how many charts it has, and what went wrong."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "needs Debian's chromium, which .ci/run installs"
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url[:200]}"))
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.goto(f"file://{page_file}")
        charts = page.locator("svg").count()
        browser.close()
    return charts, problems
