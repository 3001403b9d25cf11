"""A small experiment file, and the command itself."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXPERIMENT = '''
from dataclasses import dataclass

from lmlab import Artifact, Out, experiment, step


@dataclass(frozen=True)
class Count(Artifact):
    words: int
    headline: str
    file: str


@dataclass(frozen=True)
class Config:
    """What the command line can change."""

    text: str = "one two three"
    """The text to count."""
    times: int = 1
    """How often."""
    fail: bool = False
    """Divide by zero."""


@step(inline=True)
def source(out: Out, text: str) -> Artifact:
    (out.path / "text.txt").write_text(text)
    return Artifact()


@step
def count(out: Out, text: Artifact, times: int, fail: bool) -> Count:
    words = len((text.path / "text.txt").read_text().split()) * times
    if fail:
        words = words // 0
    out.status("counting", words, words)
    (out.path / "report.html").write_text(f"<p>{words}")
    return Count(words, f"{words} words", "report.html")


def build(config: Config = Config()) -> Artifact:
    return count("demo/count", source("demo/text", config.text), config.times, config.fail)


if __name__ == "__main__":
    experiment(build, version="2026.12.01")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "wordcount.py"
    path.write_text(EXPERIMENT)
    return path


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lmlab(tmp_path: Path) -> Command:
    """`lmlab …` in a process of its own, in an empty folder."""

    def call(*words: object, program: tuple[str, ...] = ("-m", "lmlab.cli.main"), **kwargs):
        command = [sys.executable, *program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, **kwargs)

    return call
