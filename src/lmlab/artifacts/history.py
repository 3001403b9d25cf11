"""What is stored below a root: every artifact's state, its log, and how two of them differ.

State is derived, never stored: a record means built, else the newest claim says running, failed, stopped
or dead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmlab.artifacts import claims, records
from lmlab.artifacts.claims import Beat, Owner
from lmlab.artifacts.identity import split_address, stored_name
from lmlab.artifacts.records import Record
from lmlab.core.config import Change, Json, diff
from lmlab.core.errors import ArtifactError, LmlabError
from lmlab.storage import Path
from lmlab.storage.scratch import FOLDER as SCRATCH


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
    paths = [path for path, _ in folders(root)]
    found = records.spread(root, lambda path: _entry(root, path.parent.relative_to(root), path.name), paths)
    return sorted((one for one in found if one.state != "empty"), key=lambda one: one.address)


def folders(root: Path, settled: Mapping[Path, str] | None = None) -> list[tuple[Path, str]]:
    """Folders that hold a record or claims, with the record's etag, and no look into their data (T22).

    Those that are `settled` are not listed again if they are there: their etags are taken from it.
    """
    settled = settled or {}
    found: list[tuple[Path, str]] = []
    level = [root]
    while level:
        below: list[Path] = []
        for folder, children in zip(level, records.spread(root, Path.children, level), strict=True):
            files = {child.name: stat for child, stat in children}
            record = files.get(records.RECORD)
            if record is not None or claims.FOLDER in files:
                found.append((folder, record.etag if record else ""))
                continue
            inner = [c for c, stat in children if stat is None and not c.name.startswith(".")]
            found += [(child, settled[child]) for child in inner if child in settled]
            below += [child for child in inner if child != root / SCRATCH and child not in settled]
        level = below
    return sorted(found)


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

    return records.spread(root, duration, names)


def _inputs(record: Record) -> Json:
    return {made_from.name: made_from.version for made_from in record.inputs}


def _files(record: Record) -> Json:
    files = record.files
    return {"count": files.count, "bytes": files.bytes, "tree_sha256": files.tree_sha256}


def _code(record: Record) -> Json:
    origin = record.provenance
    return {"commit": origin.commit, "tree": origin.tree, "step": record.step, "source": record.source_digest}


def _entry(root: Path, name: str, version: str) -> Entry:
    folder = root / name / version
    try:
        record = records.load(folder)
    except ArtifactError as error:
        return Entry(name, version, folder, "corrupt", error=str(error))
    if record is not None:
        state = "built" if record.source is None else "adopted"
        return Entry(name, version, folder, state, record, record.attempt)
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
