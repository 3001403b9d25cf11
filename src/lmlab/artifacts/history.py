"""What is stored below a root: every artifact's state, what it came from and what was made of it.

State is derived, never stored: a record means built, else the newest claim says running, failed, stopped
or dead.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from lmlab.artifacts import claims, records
from lmlab.artifacts.claims import Beat, Owner
from lmlab.artifacts.identity import split_address, stored_name
from lmlab.artifacts.records import Record
from lmlab.core.config import Change, Json, diff
from lmlab.core.errors import ArtifactError, LmlabError
from lmlab.storage import Path

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Entry:
    """One artifact of a root."""

    name: str
    version: str
    folder: Path
    state: str
    """built, adopted, running, failed, stopped, dead, removed, empty or corrupt"""
    record: Record | None = None
    attempt: int = 0
    """The number of the claim under which it was built, else of the newest."""
    owner: Owner | None = None
    beat: Beat | None = None
    error: str = ""
    """Why it failed, or what is wrong with its record."""

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def log(self) -> Path | None:
        """The newest attempt's output, if it left any."""
        path = claims.claim_path(self.folder, self.attempt, "log")
        return path if self.attempt and path.exists() else None


def entry(root: Path, address: str) -> Entry:
    """One artifact by `name@version`, or the newest version of a name. Raises ArtifactError if unknown."""
    name, version = split_address(address)
    if version is None:
        version = _newest_version(root, name)
    name = stored_name(name, version)
    found = _entry(root, name, version)
    if found.state == "empty":
        raise ArtifactError(f"There is no {address} below {root}. `lmlab ls` shows what there is.")
    return found


def entries(root: Path) -> list[Entry]:
    """Every artifact below a root, by address."""
    folders = _folders(root)
    found = _spread(root, lambda path: _entry(root, path.parent.relative_to(root), path.name), folders)
    return sorted((one for one in found if one.state != "empty"), key=lambda one: one.address)


def compare(old: Record, new: Record) -> dict[str, list[Change]]:
    """How two artifacts differ: by section (config, inputs, result, code), only sections with changes."""
    sections = {
        "config": diff(old.config, new.config),
        "inputs": diff(_inputs(old), _inputs(new)),
        "result": diff(old.result, new.result),
        "files": diff(_files(old), _files(new)),
        "code": diff(_code(old), _code(new)),
    }
    return {name: changes for name, changes in sections.items() if changes}


def last_durations_s(root: Path, names: Sequence[str]) -> list[float | None]:
    """How long the newest build of any version of each name took; None for what was never built."""

    def duration(name: str) -> float | None:
        # Versions sort by date, so the newest are last; dev may be newer still.
        newest = (root / name).list()[-3:]
        found = [record for path in newest if (record := _load_quietly(path)) is not None]
        last = max(found, key=lambda record: record.finished, default=None)
        return None if last is None else last.finished - last.started

    return _spread(root, duration, names)


def _inputs(record: Record) -> Json:
    return {made_from.name: made_from.version for made_from in record.inputs}


def _files(record: Record) -> Json:
    files = record.files
    return {"count": files.count, "bytes": files.bytes, "tree_sha256": files.tree_sha256}


def _code(record: Record) -> Json:
    origin = record.provenance
    return {"commit": origin.commit, "tree": origin.tree, "step": record.step, "source": record.source_digest}


def _spread(root: Path, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """All at once where a look takes milliseconds; threads cost more than they bring on a local disk."""
    if root.is_local or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(work, items))


def _folders(root: Path) -> list[Path]:
    """Folders that hold a record or claims, level by level, without looking into their data (T22)."""
    found: list[Path] = []
    level = [root]
    while level:
        below: list[Path] = []
        for folder, children in zip(level, _spread(root, Path.children, level), strict=True):
            names = {child.name for child, _ in children}
            if records.RECORD in names or claims.FOLDER in names:
                found.append(folder)
                continue
            inner = [child for child, file in children if file is None and child != root / "tmp"]
            below += [folder for folder in inner if not folder.name.startswith(".")]
        level = below
    return found


def _entry(root: Path, name: str, version: str) -> Entry:
    folder = root / name / version
    try:
        record = records.load(folder)
    except ArtifactError as error:
        return Entry(name, version, folder, "corrupt", error=str(error))
    if record is not None:
        return Entry(
            name, version, folder, "built" if record.source is None else "adopted", record, record.attempt
        )
    number = claims.newest(folder)
    if not number:
        return Entry(name, version, folder, "empty")
    owner, beat = claims.read_owner(folder, number), claims.read_beat(folder, number)
    gone = "dead" if claims.is_gone(owner) else "running"
    state = {"running": gone, "done": "removed"}.get(beat.state, beat.state)
    return Entry(name, version, folder, state, None, number, owner, beat, beat.error)


def _newest_version(root: Path, name: str) -> str:
    listed = [path for kept in {name, stored_name(name, "dev")} for path in (root / kept).list()]
    versions = [path for path in listed if not path.name.startswith(".") and path.is_dir()]
    built = [(record.finished, record.version) for p in versions if (record := _load_quietly(p)) is not None]
    if built:
        return max(built)[1]
    claimed = [path.name for path in versions if (path / claims.FOLDER).exists()]
    if claimed:
        return max(claimed)
    raise ArtifactError(f"There is no artifact called {name} in this root. `lmlab ls` shows what there is.")


def _load_quietly(folder: Path) -> Record | None:
    try:
        return records.load(folder)
    except LmlabError:
        # A broken neighbour is reported where it is asked for.
        return None
