"""Files of a place into an artifact: listed once, brought in ranges, each recorded when it is whole.

The hub, buckets, web servers and folders are read through `storage`. A file that an earlier call recorded is
not asked for again, so a run that was cut off goes on with what is missing.
"""

import re
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from lmlab.core.config import encode
from lmlab.core.errors import ConfigError, InputError, NoRanges, Refused, StorageError
from lmlab.corpus.registry import AnySource, Files, Source, check_name
from lmlab.storage import Path, Stat, publish, read_json, write_json
from lmlab.storage.globbing import matching
from lmlab.storage.parts import Ranges, download, run_all
from lmlab.storage.tree import sha256

Say = Callable[[str, int, int], None]
Entry = dict[str, Any]
PATIENT = Ranges(count=32, connections=8, tries=8, first_wait_s=5.0, longest_wait_s=120.0)
"""For servers that throttle each connection and cut long ones, as Zenodo's."""
SMALL_BYTES = 8 << 20
"""Up to this size a file comes in one request, and eight files at once."""
RECORDS = ".success"
"""Files of an artifact that are no content: what a server called a version is no property of the data."""
_BEGINS = {
    ".parquet": rb"PAR1", ".gz": rb"\x1f\x8b", ".tgz": rb"\x1f\x8b", ".zip": rb"PK", ".whl": rb"PK",
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", ".xz": rb"\xfd7zXZ", ".bz2": rb"BZh",
    ".deb": rb"!<arch>\n", ".warc": rb"WARC/",
}  # fmt: skip
_PAGE = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)


def recorded(out: Path) -> dict[str, Entry]:
    """What an earlier call brought, by file."""
    whole = out / f"{RECORDS}.json"
    found = read_json(whole) if whole.exists() else []
    return {
        entry["file"]: entry
        for entry in (*found, *map(read_json, (out / RECORDS).walk()))
        if (file := out / "archives" / entry["file"]).exists() and file.size() == entry["bytes"]
    }


def bring_all(source: AnySource, out: Path, say: Say, known: dict[str, Entry], ranges: Ranges) -> list[Entry]:
    """Bring the files of one source; an entry of the manifest for each, in the order of names."""
    if isinstance(source, Source):
        found = known.get(source.file)
        if found and found["sha256"] == source.sha256:
            return [found]
        wanted = [(source.file, Path(source.package), Stat(0, 0, ""))]
    else:
        wanted = _listed(source)
    entries: dict[str, Entry] = {}
    lock = threading.Lock()

    def one(file: tuple[str, Path, Stat]) -> None:
        name, place, stat = file
        entry = describe(source, name) | {"address": str(place), "etag": stat.etag, "bytes": stat.size_bytes}
        found = known.get(name, {})
        if entry.get("sha256") or any(found.get(key) != entry[key] for key in ("address", "etag", "bytes")):
            found = _bring(place, stat, entry, out, (say, ranges))
        with lock:
            entries[name] = entry | {"sha256": found["sha256"], "bytes": found["bytes"]}
            say(name.partition("/")[0], len(entries), len(wanted))

    run_all(one, [file for file in wanted if file[2].size_bytes <= SMALL_BYTES], ranges.connections)
    run_all(one, [file for file in wanted if file[2].size_bytes > SMALL_BYTES], 1)
    return [entries[name] for name, _, _ in wanted]


def describe(source: AnySource, file: str) -> Entry:
    """What a manifest says of a file before it has come."""
    is_archive = isinstance(source, Source)
    return {
        "file": file,
        "registry": source.registry if is_archive else Path(source.place).scheme,
        "package": source.package if is_archive else source.name,
        "version": source.version if is_archive else source.place.rpartition("@")[2],
        "sha256": source.sha256 if is_archive else None,
        "license": source.license,
        "domain": ", ".join(piece.domain for piece in source.slices),
        "slices": [encode(piece) for piece in source.slices],
    }


def _listed(source: Files) -> list[tuple[str, Path, Stat]]:
    root = Path(source.place)
    if root.scheme != "hf" and root.exists() and not root.is_dir():
        return [(f"{source.name}/{root.name}", root, root.stat())]
    found = dict(pair for pattern in source.files for pair in matching(root, pattern))
    files = [(path.relative_to(root), path, stat) for path, stat in sorted(found.items()) if stat is not None]
    if not files:
        raise InputError(
            f"{source.place} holds no file that fits {', '.join(source.files)}. Correct the patterns of "
            f"{source.name}."
        )
    try:
        return [(check_name(f"{source.name}/{name}", source.place), path, stat) for name, path, stat in files]
    except ConfigError as error:
        raise InputError(str(error)) from None


def _bring(place: Path, stat: Stat, entry: Entry, out: Path, how: tuple[Say, Ranges]) -> Entry:
    """Bring one file, hold it against what is known of it, and record it."""
    target = out / "archives" / entry["file"]
    _copy(place, stat, target, *how)
    size, digest = sha256(target)
    # The hub's version of a large file is its sha256.
    pinned = entry["sha256"] or (stat.etag if re.fullmatch("[0-9a-f]{64}", stat.etag) else digest)
    if wrong := f"sha256 {digest} instead of {pinned}" if digest != pinned else _fault(target, size):
        target.remove()
        raise InputError(
            f"{place} has {wrong}: it is not the file that was meant, and was removed. Look at what the "
            "server sends, then fetch again."
        )
    entry = entry | {"bytes": size, "sha256": digest}
    write_json(out / RECORDS / f"{entry['file']}.json", entry)
    return entry


def _copy(place: Path, stat: Stat, target: Path, say: Say, ranges: Ranges) -> None:
    if place.is_local or (stat.size_bytes <= SMALL_BYTES and place.scheme not in ("https", "http")):
        try:
            publish(place.chunks(), target, stat.size_bytes)
            return
        except StorageError as error:
            if place.is_local or isinstance(error, Refused):
                raise
            # Cut more often than one request bears: ranges go on as long as it moves.
            say(f"{target.name}: in ranges", 0, 1)
    try:
        download(place, target.local, ranges)
    except NoRanges:
        say(f"{target.name}: whole, its server gives no ranges", 0, 1)
        with target.open_writer() as writer:
            writer.writelines(place.chunks())


def _fault(file: Path, size_bytes: int) -> str:
    """What is wrong with a file by its first bytes; empty if they fit its name."""
    suffix, head = PurePosixPath(file.name).suffix, file.read_range(0, 64)
    begins = _BEGINS.get(suffix)
    if not size_bytes and (begins or not suffix):
        return "no bytes"
    if _PAGE.match(head) and suffix not in (".html", ".htm", ".xhtml", ".xml"):
        return f"an HTML page in place of {suffix or 'data'}"
    if begins and not re.match(begins, head, re.DOTALL):
        return f"the first bytes {head[:8]!r}, which no {suffix} has"
    is_cut = suffix == ".parquet" and file.read_range(size_bytes - 4, 4) != b"PAR1"
    return "no footer, so it was cut off" if is_cut else ""
