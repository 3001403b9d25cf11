"""The README and the docs tell the truth: their links lead somewhere and their code blocks run.

A `python` block runs in the namespace of its page. In a `console` block each `$ ` line runs in a shell, in a
copy of the project's folder layout; the lines below it are what it prints, with … for what varies.
"""

import fnmatch
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)(?: ([\w.=/-]+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    note: str | None
    text: str


def blocks(page, language):
    found = [Block(*match.groups()) for match in FENCE.finditer(page.read_text())]
    return [block for block in found if block.language == language and block.note != "not-run"]


def name(page):
    return str(page.relative_to(PROJECT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_to_a_file(page):
    targets = [match.group(1) for match in LINK.finditer(page.read_text())]
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def test_the_readme_is_short():
    assert (PROJECT / "README.md").read_text().count("\n") <= 150
