"""The command that built an artifact, as a reader would type it in a clone."""

import shlex
from collections.abc import Sequence


def command(argv: Sequence[str]) -> str:
    """A recorded command line without the places of the machine it ran on.

    >>> command(["/home/a/lab/.venv/bin/lmlab", "run", "/home/a/lab/experiments/quickstart.py"])
    'lmlab run experiments/quickstart.py'
    """
    program, *rest = argv or ("lmlab",)
    name = program.replace("\\", "/").rsplit("/", 1)[-1]
    rest = [_inside_clone(part) for part in rest]
    return shlex.join(["python", _inside_clone(program), *rest] if name.endswith(".py") else [name, *rest])


def _inside_clone(part: str) -> str:
    _, found, below = part.replace("\\", "/").rpartition("/experiments/")
    return f"experiments/{below}" if found else part
