"""Execution traces: the Python tests of a repository run in a sandbox, and every line says what it changed.

Each test file gets a process of its own, in a copy of the repository, with limits on memory, time and files
and, where the kernel allows it, without network. It guards against accidents of honest tests, not against
an attacker. What comes out are rows for the renderer `execution_trace`.
"""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path as LocalPath

import orjson

from lmlab.core.errors import InputError
from lmlab.core.process import guarded, kill_group, start
from lmlab.corpus import tracee
from lmlab.dataflow.counters import count
from lmlab.storage import Path

MOST_LINES = 2_000
MAX_REPOSITORY_BYTES = 256 << 20
Row = dict[str, object]


def trace_tests(
    repository: Path, tests: tuple[str, ...] = ("test_*.py", "*_test.py"), timeout_s: float = 60.0
) -> Iterator[Row]:
    """A row for each test of the files of these names: its source, its outcome, and the lines it ran.

    A test that takes its process down, or is still at it after `timeout_s` for its file, is a row too, with
    an empty trace. Tests that need fixtures are left out. Raises InputError if there are no test files.
    """
    with tempfile.TemporaryDirectory(prefix="lmlab-trace-") as folder:
        root = LocalPath(folder) / "repository"
        files = sorted(_copied(repository, root))
        chosen = [name for name in files if any(fnmatch(name.rpartition("/")[2], wanted) for wanted in tests)]
        if not chosen:
            raise InputError(f"{repository} has no files named {' or '.join(tests)}, so no test can run.")
        for name in chosen:
            yield from _traced(root, name, LocalPath(folder), timeout_s)


def _copied(repository: Path, root: LocalPath) -> Iterator[str]:
    size = 0
    for path, stat in repository.walk_stats():
        name = path.relative_to(repository)
        size += stat.size_bytes
        if size > MAX_REPOSITORY_BYTES:
            raise InputError(
                f"{repository} is larger than {MAX_REPOSITORY_BYTES >> 20} MiB. Give a smaller one."
            )
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(path.read_bytes())
        yield name


def _traced(root: LocalPath, name: str, folder: LocalPath, timeout_s: float) -> Iterator[Row]:
    rows, said, ending = folder / "rows.jsonl", folder / "stderr", ""
    rows.write_bytes(b"")
    argv = [sys.executable, "-I", tracee.__file__, str(root), name, str(rows), str(MOST_LINES)]
    env = {"HOME": str(folder), "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
    with said.open("wb") as stderr:
        child = start(guarded(argv), stdout=subprocess.DEVNULL, stderr=stderr, env=env)
    try:
        code = child.wait(timeout_s)
        ending = f"ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        ending = f"still running after {timeout_s:g} s"
    finally:
        kill_group(child, grace_s=0)
    complete = rows.read_bytes().rpartition(b"\n")[0]
    lines = [orjson.loads(line) for line in complete.splitlines()]
    if not lines and ending:
        count("untraced_files")
        last = said.read_text(errors="replace").strip().rpartition("\n")[2]
        logging.getLogger(__name__).warning("%s can't be traced: its process %s. %s", name, ending, last)
    lost: Row = {"outcome": f"error: the process {ending}", "trace": [], "events": 0, "is_cut": False}
    for i in range(0, len(lines), 2):
        if lines[i]["has_network"]:
            count("traced_with_network")
        yield {**lines[i], **(lines[i + 1] if i + 1 < len(lines) else lost)}
