"""What is stored below a root: every artifact's state, what it came from and what was made of it.

State is derived, never stored: a record means built, else the newest claim says running, failed, stopped
or dead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lmlab.artifacts import claims, records
from lmlab.artifacts.claims import Beat, Owner
from lmlab.artifacts.identity import split_address
from lmlab.artifacts.records import Record
from lmlab.core.config import Change, Json, diff
from lmlab.core.errors import ArtifactError, LmlabError
from lmlab.storage import Path


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
    """The newest claim's number."""
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
        version = _newest_version(root / name, address)
    found = _entry(root, name, version)
    if found.state == "empty":
        raise ArtifactError(f"There is no {address} below {root}. `lmlab ls` shows what there is.")
    return found


def entries(root: Path) -> list[Entry]:
    """Every artifact below a root, by name and version."""
    found = [_entry(root, path.parent.relative_to(root), path.name) for path in _folders(root)]
    return [one for one in found if one.state != "empty"]


def ancestors(root: Path, record: Record) -> dict[str, Record | None]:
    """Everything an artifact was made from, nearest first; None for what is gone."""
    found: dict[str, Record | None] = {}
    level = [made_from.address for made_from in record.inputs]
    while level:
        below: list[str] = []
        for address in dict.fromkeys(level):
            if address not in found:
                name, _, version = address.partition("@")
                found[address] = loaded = records.load(root / name / version)
                below += [made_from.address for made_from in loaded.inputs] if loaded else []
        level = below
    return found


def descendants(root: Path, address: str) -> dict[str, Record]:
    """Everything that was made from an artifact, directly or not, nearest first."""
    users: dict[str, list[Record]] = {}
    for record in [stored.record for stored in entries(root) if stored.record]:
        for made_from in record.inputs:
            users.setdefault(made_from.address, []).append(record)
    found: dict[str, Record] = {}
    level = [address]
    while level:
        above = [user for used in level for user in users.get(used, ()) if user.address not in found]
        found.update({user.address: user for user in above})
        level = [user.address for user in above]
    return found


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


def last_duration_s(root: Path, name: str) -> float | None:
    """How long the newest build of any version of `name` took; None if it was never built."""
    found = [record for path in (root / name).list() if (record := _load_quietly(path)) is not None]
    newest = max(found, key=lambda record: record.finished, default=None)
    return None if newest is None else newest.finished - newest.started


def _inputs(record: Record) -> Json:
    return {made_from.name: made_from.version for made_from in record.inputs}


def _files(record: Record) -> Json:
    files = record.files
    return {"count": files.count, "bytes": files.bytes, "tree_sha256": files.tree_sha256}


def _code(record: Record) -> Json:
    origin = record.provenance
    return {"commit": origin.commit, "tree": origin.tree, "step": record.step, "source": record.source_digest}


def _folders(root: Path) -> Iterator[Path]:
    """Folders that hold a record or claims, without looking into their data."""
    pending = [root]
    while pending:
        children = pending.pop().list()
        names = {child.name for child in children}
        if records.RECORD in names or claims.FOLDER in names:
            yield children[0].parent
        else:
            pending += [c for c in reversed(children) if not c.name.startswith(".") and c.is_dir()]


def _entry(root: Path, name: str, version: str) -> Entry:
    folder = root / name / version
    try:
        record = records.load(folder)
    except ArtifactError as error:
        return Entry(name, version, folder, "corrupt", error=str(error))
    number = claims.newest(folder)
    owner = claims.read_owner(folder, number) if number else None
    beat = claims.read_beat(folder, number) if number else None
    if record is not None:
        state = "built" if record.source is None else "adopted"
        return Entry(name, version, folder, state, record, number, owner, beat)
    if beat is None:
        return Entry(name, version, folder, "empty")
    gone = "dead" if claims.is_gone(owner) else "running"
    state = {"running": gone, "done": "removed"}.get(beat.state, beat.state)
    return Entry(name, version, folder, state, None, number, owner, beat, beat.error)


def _newest_version(folder: Path, address: str) -> str:
    versions = [path for path in folder.list() if not path.name.startswith(".") and path.is_dir()]
    built = [(record.finished, record.version) for p in versions if (record := _load_quietly(p)) is not None]
    if built:
        return max(built)[1]
    claimed = [path.name for path in versions if (path / claims.FOLDER).exists()]
    if claimed:
        return max(claimed)
    raise ArtifactError(
        f"There is no artifact called {address} in this root. `lmlab ls` shows what there is."
    )


def _load_quietly(folder: Path) -> Record | None:
    try:
        return records.load(folder)
    except LmlabError:
        # A broken neighbour is reported where it is asked for.
        return None
