"""`lmlab fs …`: files wherever they lie (disk, s3, gs, hf, https); `lmlab gc`: removes what nobody needs.

Every subverb is a function from the flags to an answer: a JSON value, the lines for people, the exit code.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any

import tyro

from lmlab.cli.table import table
from lmlab.core import environ
from lmlab.core.errors import ConfigError, StorageError
from lmlab.core.units import format_bytes
from lmlab.storage import Path, choose_root, copy, regions, scratch
from lmlab.storage.lab import lab


@dataclass(frozen=True, kw_only=True)
class FsFlags:
    """Files and folders wherever they lie: a local path, s3://…, gs://…, hf://…, https://…

    - ls PATH, stat PATH, du PATH, find FOLDER PATTERN (with **, *, ?, [a-z], {a,b})
    - cat FILE, head FILE [-n 10]
    - cp SOURCE TARGET [--verify], mv SOURCE TARGET
    - sync SOURCE TARGET [--delete] [--dry-run] [--checksum]
    - hash PATH, verify SOURCE TARGET (the sha256 of both ends)
    - rm PATH [--yes]
    - buckets (what lmlab.toml declares), lifecycle ROOT (rules by which a bucket expires scratch)

    Of a source folder the content is meant; a target that ends with / is a folder to put the source into.
    """

    subverb: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUBVERB")] = ""
    """One of those above."""
    paths: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH")] = ()
    """What it works on."""
    lines: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 10
    """head: how many lines."""
    verify: bool = False
    """cp: hash both ends, and send only what differs."""
    delete: bool = False
    """sync: remove what the source does not have, once every copy has succeeded."""
    dry_run: bool = False
    """sync: say what would be done."""
    checksum: bool = False
    """sync: compare contents, not sizes and times."""
    yes: bool = False
    """rm: a folder and all below, without asking."""
    root: str | None = None
    """The lab's root, which keeps the account of transfers; otherwise LMLAB_ROOT or lmlab.toml."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class GcFlags:
    """Remove expired scratch and what killed writers left; never anything that belongs to an artifact."""

    dry_run: bool = False
    """Say what would be removed."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Answer:
    """What a subverb found or did."""

    value: Any
    lines: Sequence[str]
    code: int = 0


def fs(flags: FsFlags, _fields: list[str]) -> int:
    """`lmlab fs`."""
    if flags.subverb not in SUBVERBS:
        raise ConfigError(f"lmlab fs has no subverb {flags.subverb!r}. It has: {', '.join(SUBVERBS)}.")
    function, usage, own = SUBVERBS[flags.subverb]
    given = [name for name in OPTIONS if getattr(flags, name) != getattr(FsFlags, name) and name not in own]
    if given or len(flags.paths) != len(usage.split()) or "" in flags.paths:
        got = f"--{given[0].replace('_', '-')}" if given else " ".join(map(repr, flags.paths)) or "nothing"
        raise ConfigError(f"lmlab fs {flags.subverb} takes {usage or 'no path'}, not {got}. See --help.")
    if flags.root:
        choose_root(flags.root)
    return _say(function(flags), flags.json)


def gc(flags: GcFlags, _fields: list[str]) -> int:
    """`lmlab gc`."""
    root, cache, now, removes = (
        choose_root(flags.root),
        Path(environ.cache_dir()),
        time.time(),
        not flags.dry_run,
    )
    swept = {
        "expired scratch": scratch.sweep(root, now, remove=removes)
        + scratch.sweep(cache, now, remove=removes),
        "unfinished write": scratch.sweep_drafts(root, now, remove=removes),
    }
    rows = [{"path": str(p), "bytes": size, "why": why} for why, files in swept.items() for p, size in files]
    total = sum(row["bytes"] for row in rows)
    lines = table([[row["why"], format_bytes(row["bytes"]), row["path"]] for row in rows])
    done = "removed" if removes else "would be removed"
    lines.append(f"{len(rows)} files, {format_bytes(total)} {done} below {root}")
    return _say(Answer({"removed": removes, "bytes": total, "files": rows}, lines), flags.json)


def _say(answer: Answer, as_json: bool) -> int:
    if as_json:
        print(json.dumps(answer.value, indent=1))
    elif answer.lines:
        print("\n".join(answer.lines))
    return answer.code


# -- looking ---------------------------------------------------------------------------------------


def _buckets(_: FsFlags) -> Answer:
    here, file = choose_root(), lab()
    places = {str(here): "own root"} | {str(Path(p)): "root" for p in file.roots.values() if Path(p) != here}
    places |= dict.fromkeys(file.backends, "backend")
    rows = [{"place": p, "what": what, "region": regions.region_of(p)} for p, what in places.items()]
    shown = table(
        [[r["place"], r["what"], r["region"] or "not declared"] for r in rows], ("place", "what", "region")
    )
    return Answer(rows, [*shown, f"this machine is in {regions.own_region() or 'no declared region'}"])


def _ls(flags: FsFlags) -> Answer:
    place = _there(flags.paths[0])
    found = sorted(place.children()) if place.is_dir() else [(place, place.stat())]
    rows = [{"path": str(path), **_facts(stat)} for path, stat in found]
    shown = [
        ["" if stat is None else format_bytes(stat.size_bytes), _when(stat), path.name + "/" * (stat is None)]
        for path, stat in found
    ]
    return Answer(rows, table(shown))


def _cat(flags: FsFlags) -> Answer:
    place = _file(flags.paths[0])
    if flags.json:
        data = place.read_bytes()
        return Answer({"path": str(place), "bytes": len(data), "text": data.decode(errors="replace")}, [])
    for block in place.chunks():
        sys.stdout.buffer.write(block)
    return Answer(None, [])


def _head(flags: FsFlags) -> Answer:
    with _file(flags.paths[0]).open() as file:
        # What has no lines at all is cut after a MiB.
        lines = islice(iter(lambda: file.readline(1 << 20), b""), flags.lines)
        text = [line.decode(errors="replace").rstrip("\n") for line in lines]
    return Answer(text, text)


def _stat(flags: FsFlags) -> Answer:
    place = _there(flags.paths[0])
    stat = None if place.is_dir() else place.stat()
    facts = {"path": str(place), **_facts(stat), "region": regions.region_of(place)}
    return Answer(facts, table([[name, value] for name, value in facts.items() if value is not None]))


def _du(flags: FsFlags) -> Answer:
    place = _there(flags.paths[0])
    below: dict[str, list[int]] = {}
    for name, stat in copy.listing(place).items():
        below.setdefault(name.partition("/")[0] or place.name, []).append(stat.size_bytes)
    rows = [{"name": name, "files": len(sizes), "bytes": sum(sizes)} for name, sizes in sorted(below.items())]
    rows.append({"name": ".", "files": sum(r["files"] for r in rows), "bytes": sum(r["bytes"] for r in rows)})
    return Answer(
        rows,
        table([[format_bytes(r["bytes"]), r["files"], r["name"]] for r in rows], ("size", "files", "name")),
    )


def _find(flags: FsFlags) -> Answer:
    found = [str(path) for path in _there(flags.paths[0]).glob(flags.paths[1])]
    return Answer(found, found)


def _hash(flags: FsFlags) -> Answer:
    place = _there(flags.paths[0])
    digests = copy.digests(place)
    value = {
        "files": {name: digest for name, (_, digest) in digests.items()},
        "whole": copy.whole_sha256(digests),
    }
    lines = [f"{digest}  {name or place.name}" for name, (_, digest) in digests.items()]
    return Answer(value, lines if "" in digests else [*lines, f"{value['whole']}  ."])


def _verify(flags: FsFlags) -> Answer:
    source, target = (copy.digests(_there(path)) for path in flags.paths)
    problems = [
        f"{name or flags.paths[0]}: {_difference(source.get(name), target.get(name), flags.paths)}"
        for name in sorted(source.keys() | target.keys())
        if source.get(name) != target.get(name)
    ]
    size = format_bytes(sum(size for size, _ in source.values()))
    equal = [f"equal: {len(source)} files, {size}, sha256 {copy.whole_sha256(source)[:16]}"]
    return Answer({"equal": not problems, "problems": problems}, problems or equal, 1 if problems else 0)


def _difference(one: tuple[int, str] | None, other: tuple[int, str] | None, paths: Sequence[str]) -> str:
    if one is None or other is None:
        return f"only in {paths[0] if one else paths[1]}"
    return f"{one[0]} bytes with sha256 {one[1][:12]}, but {other[0]} with {other[1][:12]} in {paths[1]}"


def _lifecycle(flags: FsFlags) -> Answer:
    rules = scratch.lifecycle(Path(flags.paths[0]))
    return Answer(rules, [json.dumps(rules, indent=1)])


# -- changing --------------------------------------------------------------------------------------


def _cp(flags: FsFlags) -> Answer:
    source, target = _ends(flags)
    if not flags.verify:
        return _moved("copied", copy.copy_all(source, target), target)
    done = copy.verified_copy(source, target)
    said = (
        f"{done.files} files, {format_bytes(done.bytes)} are equal at both ends, {done.present} were before"
    )
    return Answer(asdict(done), [f"{said}; sha256 {done.sha256[:16]}"])


def _mv(flags: FsFlags) -> Answer:
    source, target = _ends(flags)
    return _moved("moved", copy.move(source, target), target)


def _sync(flags: FsFlags) -> Answer:
    source, target = (Path(path) for path in flags.paths)
    options = {name: getattr(flags, name) for name in SUBVERBS["sync"][2]}
    actions = copy.sync(_there(str(source)), target, **options)
    size = sum(action.bytes for action in actions if action.kind == "copy")
    lines = table([[a.kind, format_bytes(a.bytes), a.name or source.name, a.why] for a in actions])
    said = "would be done" if flags.dry_run else "done"
    return Answer(
        [asdict(a) for a in actions], [*lines, f"{len(actions)} changes {said}, {format_bytes(size)} to copy"]
    )


def _rm(flags: FsFlags) -> Answer:
    place = _there(flags.paths[0])
    below = copy.listing(place)
    size = sum(stat.size_bytes for stat in below.values())
    if place.is_dir() and not flags.yes:
        raise ConfigError(
            f"{place} holds {len(below)} files, {format_bytes(size)}. Add --yes to remove all of them."
        )
    place.remove_tree()
    return Answer({"files": len(below), "bytes": size}, [f"removed {len(below)} files, {format_bytes(size)}"])


# -- parts -----------------------------------------------------------------------------------------


def _there(text: str) -> Path:
    place = Path(text)
    if not place.exists():
        raise StorageError(f"{place} does not exist. Check the path.")
    return place


def _file(text: str) -> Path:
    place = _there(text)
    if place.is_dir():
        raise ConfigError(
            f"{place} is a folder, and this reads one file. `lmlab fs ls {place}` shows what is in it."
        )
    return place


def _ends(flags: FsFlags) -> tuple[Path, Path]:
    """Source and target of a copy; a folder as target takes a file in."""
    source, text = _there(flags.paths[0]), flags.paths[1]
    target = Path(text)
    if text.endswith("/") or (
        target.scheme not in copy.READ_ONLY and target.is_dir() and not source.is_dir()
    ):
        target = target / source.name
    copy.check_ends(source, target)
    return source, target


def _moved(verb: str, files: dict[str, Any], target: Path) -> Answer:
    size = sum(stat.size_bytes for stat in files.values())
    what = {"files": len(files), "bytes": size, "target": str(target)}
    return Answer(what, [f"{verb} {len(files)} files, {format_bytes(size)} to {target}"])


def _facts(stat: copy.Stat | None) -> dict[str, Any]:
    if stat is None:
        return {"kind": "folder", "bytes": None, "modified": None, "etag": None}
    return {"kind": "file", "bytes": stat.size_bytes, "modified": _when(stat), "etag": stat.etag}


def _when(stat: copy.Stat | None) -> str:
    return "" if stat is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.modified))


OPTIONS = ("lines", "verify", "delete", "dry_run", "checksum", "yes")
SUBVERBS: dict[str, tuple[Callable[[FsFlags], Answer], str, tuple[str, ...]]] = {
    "buckets": (_buckets, "", ()),
    "ls": (_ls, "PATH", ()),
    "cat": (_cat, "FILE", ()),
    "head": (_head, "FILE", ("lines",)),
    "stat": (_stat, "PATH", ()),
    "du": (_du, "PATH", ()),
    "find": (_find, "FOLDER PATTERN", ()),
    "hash": (_hash, "PATH", ()),
    "verify": (_verify, "SOURCE TARGET", ()),
    "cp": (_cp, "SOURCE TARGET", ("verify",)),
    "mv": (_mv, "SOURCE TARGET", ()),
    "sync": (_sync, "SOURCE TARGET", ("delete", "dry_run", "checksum")),
    "rm": (_rm, "PATH", ("yes",)),
    "lifecycle": (_lifecycle, "ROOT", ()),
}
