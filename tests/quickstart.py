"""How the tests run the quick start: its own `build()`, small, through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
EXPERIMENT = PROJECT / "experiments" / "quickstart.py"
VERSION = "2026.11.30"
SMALL = (
    *("--source", "stdlib", "--hidden", "64", "--seq", "64", "--batch", "4"),
    *("--steps", "20", "--rungs", "32", "64", "96"),
)


def lmlab(*arguments, root, timeout=600, check=True):
    """Run the command in a process of its own; the text it printed is in `.stdout`."""
    done = subprocess.run(
        command(*arguments),
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        told = done.stdout[-4000:] + done.stderr[-2000:]
        raise AssertionError(f"lmlab {' '.join(arguments)} ended with {done.returncode}:\n{told}")
    return done


def command(*arguments):
    return [sys.executable, "-m", "lmlab.cli.main", *arguments]


def environment(root):
    return {**os.environ, "LMLAB_ROOT": str(root)}


def run_small(root, *changes, **options):
    """The whole chain; a root that holds it already answers at once."""
    return lmlab("run", str(EXPERIMENT), "--", *SMALL, *changes, root=root, **options)


def record(root, name):
    return json.loads((Path(root) / name / VERSION / ".artifact.json").read_text())


def folder(root, name):
    return Path(root) / name / VERSION
