"""The README and the docs tell the truth: their links lead somewhere, their code runs, their output is real.

A `python` block runs in the namespace of its page; one with a file name is written to that file. In a
`console` block each `$ ` line runs in a shell beside those files, with the small quick start as the root; the
lines below it must come out in that order, whatever the numbers, with … for any text. Blocks marked `long`
are run by test_make.py.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart import PROJECT, environment

PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)(?: ([\w.=/-]+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(#[^)]*)?\)")
NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    note: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in FENCE.finditer(page.read_text())]


def has_code(page: Path) -> bool:
    return any(block.language in ("python", "console") and block.note != "long" for block in blocks(page))


def page_name(page: Path) -> str:
    return str(page.relative_to(PROJECT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_relative_link_leads_to_a_file(page):
    targets = [match.group(1) for match in LINK.finditer(page.read_text())]
    assert not [t for t in targets if "://" not in t and not (page.parent / t).exists()]


def test_the_readme_is_short():
    assert (PROJECT / "README.md").read_text().count("\n") <= 150


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [page for page in PAGES if has_code(page)], ids=page_name)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page, tmp_path, small_quickstart):
    (tmp_path / "experiments").symlink_to(PROJECT / "experiments")
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python" and block.note is not None:
            (tmp_path / block.note).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page_name(page), "exec"), namespace)
        elif block.language == "console" and block.note != "long":
            run_console(block.text, tmp_path, small_quickstart.root)


def run_console(text: str, folder: Path, root: Path) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**environment(root), "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        missing = first_missing([line for line in shown if line.strip()], done.stdout.splitlines())
        assert missing is None, f"$ {command}\nshould print: {missing}\nprinted:\n{done.stdout[-3000:]}"


def first_missing(shown: list[str], printed: list[str]) -> str | None:
    """The first shown line that does not come out after the ones before it."""
    rest = iter(printed)
    for line in shown:
        pattern = re.escape(normal(line)).replace("…", ".*")
        if line.strip() != "…" and not any(re.fullmatch(pattern, normal(candidate)) for candidate in rest):
            return line
    return None


def normal(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())


def test_a_line_that_is_not_printed_is_found():
    printed = ["built in 3.2 s", "steps  20", "done"]
    assert first_missing(["built in 9 s", "…", "done"], printed) is None
    assert first_missing(["steps 3", "built in 9 s"], printed) == "built in 9 s"
