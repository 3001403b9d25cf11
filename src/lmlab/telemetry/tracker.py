"""Metrics of a run: the protocol that training talks to, and the JSON-lines file that implements it.

A tracker takes plain host numbers, one row per step. The file is a pure function of the run: on resume the
rows after the restored checkpoint are cut, so it ends up as an uninterrupted run's, wall-clock columns aside.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from lmlab.core.errors import InputError, StorageError
from lmlab.storage import Path, write_json

Row = dict[str, float]


class Tracker(Protocol):
    """Where a run's numbers go. Rows come in the order of their steps; one call may add to the last step."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the numbers of one step."""
        ...

    def summary(self, values: Mapping[str, Any]) -> None:
        """Record the values that stand for the whole run."""
        ...

    def finish(self) -> None:
        """Flush and close; further calls are errors."""
        ...


class JsonLines:
    """One JSON object per step in `metrics.jsonl`, and `summary.json` at the end.

    All but the first `rows` rows (those that the restored checkpoint knows of; 0 for a new run) are cut when
    the file is opened, a half-written last line with them. Every row is handed to the system before `log`
    returns, so a killed process loses none; a killed machine may.
    """

    def __init__(self, folder: Path, *, rows: int = 0) -> None:
        self._folder = folder
        self._path = folder / "metrics.jsonl"
        _cut(self._path, rows)
        self._file = self._path.local.open("ab", buffering=0)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append one row. Numbers that are not finite are left out: JSON has none, a gap shows as a gap."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        line = orjson.dumps({"step": step, **finite}) + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise StorageError(
                f"{self._path} could not be written ({error.strerror}), so the run would lose its curve. "
                "Free some space and run again: it resumes."
            ) from error

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        write_json(self._folder / "summary.json", dict(values))

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[Row]:
    """The rows of a `metrics.jsonl`; a half-written last line is left out, any other bad line is an error."""
    rows: list[Row] = []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InputError(
                f"{path} line {number} is not JSON ({error}), so the curve has a hole. Restore the file."
            ) from error
    return rows


def _cut(path: Path, rows: int) -> None:
    """Keep the first `rows` rows; the bytes of those stay as they are."""
    if not path.exists():
        return
    lines = path.local.read_bytes().split(b"\n")[:-1]
    if len(lines) < rows:
        raise InputError(
            f"{path} has {len(lines)} rows, but the checkpoint was written after {rows}, so the curve would "
            "have a hole. Restore the file, or train under another version."
        )
    path.write_bytes(b"".join(line + b"\n" for line in lines[:rows]))
