"""`lmlab ls`, `show`, `lineage`, `diff`, `verify`: what is stored, read from records and claims."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
import tyro

from lmlab.artifacts import history, records
from lmlab.artifacts.catalog import Catalog, Snapshot
from lmlab.artifacts.history import Entry
from lmlab.artifacts.identity import bare_name
from lmlab.artifacts.records import Record
from lmlab.cli.table import table
from lmlab.core.errors import ArtifactError
from lmlab.core.units import format_bytes, format_seconds
from lmlab.storage import choose_root

Address = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME@VERSION")]


@dataclass(frozen=True, kw_only=True)
class _Flags:
    """What every verb takes."""

    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class LsFlags(_Flags):
    """List artifacts and their states."""

    prefix: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PREFIX")] = ""
    """Only names that begin so, such as runs/; `users/{user}/` may be left out."""
    failed: bool = False
    """Only those that failed, died or were stopped."""


@dataclass(frozen=True, kw_only=True)
class OneFlags(_Flags):
    """One artifact."""

    artifact: Address
    """NAME@VERSION, or NAME for its newest version."""


@dataclass(frozen=True, kw_only=True)
class LineageFlags(OneFlags):
    """What an artifact was made from, and what was made of it."""

    down: bool = False
    """Only what was made of it."""
    up: bool = False
    """Only what it was made from."""


@dataclass(frozen=True, kw_only=True)
class DiffFlags(_Flags):
    """How two artifacts differ: recipe, inputs, result, code, files."""

    old: Address
    """NAME@VERSION, or NAME for its newest version."""
    new: Address
    """The same."""


def ls(flags: LsFlags, _fields: list[str]) -> int:
    """`lmlab ls`."""
    root = choose_root(flags.root)
    bad = ("failed", "dead", "stopped", "corrupt")
    found = history.entries(root)
    found = [e for e in found if any(n.startswith(flags.prefix) for n in (e.name, bare_name(e.name)))]
    found = [e for e in found if not flags.failed or e.state in bad]
    if flags.json:
        print(json.dumps([_brief(e) for e in found], indent=1))
    elif not found:
        print(f"no artifacts below {root}; `lmlab run EXP.py` makes some")
    else:
        header = ("artifact", "state", "type", "files", "size", "took", "finished")
        print("\n".join(table([_row(e) for e in found], header)))
    return 0


def show(flags: OneFlags, _fields: list[str]) -> int:
    """`lmlab show`."""
    found = history.entry(choose_root(flags.root), flags.artifact)
    if flags.json:
        print(json.dumps(_full(found), indent=1))
    else:
        print("\n".join(_built_lines(found, found.record) if found.record else _unbuilt_lines(found)))
    return 0


def lineage(flags: LineageFlags, _fields: list[str]) -> int:
    """`lmlab lineage`."""
    snapshot = Catalog(choose_root(flags.root)).refresh()
    address = snapshot.row(flags.artifact).address
    up = [] if flags.down else snapshot.up(address)
    down = [] if flags.up else snapshot.down(address)
    if flags.json:
        inputs = {a: snapshot.rows[a].inputs if a in snapshot.rows else None for a in (*up, *down)}
        print(json.dumps({"artifact": address, "up": up, "down": down, "inputs": inputs}, indent=1))
        return 0
    print(address)
    for title, related in (("made from", up), ("used for", down)):
        if related:
            print(title)
            print("\n".join(f"  {line}" for line in table([_relative(a, snapshot) for a in related])))
    return 0


def diff(flags: DiffFlags, _fields: list[str]) -> int:
    """`lmlab diff`."""
    root = choose_root(flags.root)
    old, new = (_built(history.entry(root, address)) for address in (flags.old, flags.new))
    sections = history.compare(old, new)
    if flags.json:
        print(
            json.dumps({name: [asdict(c) for c in changes] for name, changes in sections.items()}, indent=1)
        )
        return 0
    if not sections:
        print(f"{old.address} and {new.address} do not differ")
    for name, changes in sections.items():
        print(name)
        print("\n".join(f"  {change}" for change in changes))
    return 0


def verify(flags: OneFlags, _fields: list[str]) -> int:
    """`lmlab verify`."""
    found = history.entry(choose_root(flags.root), flags.artifact)
    record = _built(found)
    problems = records.verify(found.folder, record)
    if flags.json:
        print(
            json.dumps({"artifact": record.address, "intact": not problems, "problems": problems}, indent=1)
        )
    elif problems:
        raise ArtifactError(
            f"{record.address} is not as it was built, in {len(problems)} files: {'; '.join(problems[:5])}. "
            f"Remove {found.folder} to build it again."
        )
    else:
        how = "sizes alone, as it is adopted" if record.files.tree_sha256 is None else "sha256"
        files = f"{record.files.count} files, {format_bytes(record.files.bytes)}"
        print(f"{record.address} is intact: {files} ({how})")
    return 1 if problems else 0


# -- lines ------------------------------------------------------------------------------------------


def _built(found: Entry) -> Record:
    if found.record is None:
        raise ArtifactError(f"{found.address} is not built: {found.state}. {found.error}".strip())
    return found.record


def _row(found: Entry) -> list[str]:
    record = found.record
    if record is None:
        at = _when(found.owner.at) if found.owner else ""
        return [found.address, found.state, "", "", "", "", at]
    size, took = format_bytes(record.files.bytes), format_seconds(record.finished - record.started)
    count, finished = str(record.files.count), _when(record.finished)
    return [found.address, found.state, record.result_type, count, size, took, finished]


def _relative(address: str, snapshot: Snapshot) -> list[str]:
    row = snapshot.rows.get(address)
    if row is None:
        return [address, "gone", ""]
    return [address, row.step or "", _when(row.finished) if row.finished else row.state]


def _built_lines(found: Entry, record: Record) -> list[str]:
    origin, files = record.provenance, record.files
    code = "no git" if origin.commit is None else origin.commit[:12]
    if origin.dirty:
        code += f" with uncommitted changes (tree {str(origin.tree)[:12]})"
    rows = [
        ["state", found.state],
        ["step", f"{record.step.strip('_')}, attempt {record.attempt}"],
        ["took", f"{format_seconds(record.finished - record.started)}, until {_when(record.finished)}"],
        ["files", f"{files.count}, {format_bytes(files.bytes)}, sha256 {str(files.tree_sha256)[:16]}"],
        ["place", record.source or str(found.folder)],
        ["recipe", record.fingerprint],
        ["code", code],
        ["command", " ".join(origin.argv)],
        ["by", f"{origin.user} on {origin.host}, Python {origin.python}"],
    ]
    rows += [["input", made_from.address] for made_from in record.inputs]
    rows += [["after", address] for address in record.after]
    if found.log is not None:
        rows.append(["log", str(found.log)])
    lines = [record.address, *(f"  {line}" for line in table(rows))]
    for title, value in (("result", record.result), ("config", record.config)):
        lines += [title, *(f"  {line}" for line in _tree(value))]
    return lines


def _unbuilt_lines(found: Entry) -> list[str]:
    rows = [["state", found.state], ["attempt", str(found.attempt)]]
    if found.owner:
        rows.append(["owner", f"{found.owner.shown}, since {_when(found.owner.at)}"])
    if found.log is not None:
        rows.append(["log", str(found.log)])
    lines = [found.address, *(f"  {line}" for line in table(rows))]
    if found.error:
        lines += ["why", *(f"  {line}" for line in found.error.splitlines())]
    if found.beat and found.beat.traceback:
        lines += ["traceback", *(f"  {line}" for line in found.beat.traceback.splitlines())]
    return lines


def _tree(value: Any, indent: str = "") -> list[str]:
    """Nested JSON as indented `key: value` lines; a dataclass's name stands on its line."""
    lines: list[str] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if key == "type" and isinstance(value, dict):
            continue
        if isinstance(item, dict | list) and item:
            name = item.get("type", "") if isinstance(item, dict) else ""
            lines += [f"{indent}{key}: {name}".rstrip(), *_tree(item, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {item}")
    return lines


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _brief(found: Entry) -> dict[str, Any]:
    record = found.record
    return {
        "address": found.address,
        "state": found.state,
        "type": record.result_type if record else None,
        "files": record.files.count if record else None,
        "bytes": record.files.bytes if record else None,
        "finished": record.finished if record else None,
        "error": found.error or None,
    }


def _full(found: Entry) -> dict[str, Any]:
    return {
        **_brief(found),
        "folder": str(found.folder),
        "log": str(found.log) if found.log else None,
        "record": msgspec.to_builtins(found.record),
        "owner": msgspec.to_builtins(found.owner),
        "last_beat": msgspec.to_builtins(found.beat),
    }
