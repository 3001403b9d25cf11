"""Files of a place into an artifact: listed once, brought in ranges, each recorded when it is whole.

The hub, buckets, web servers and folders are read through `storage`. A file that an earlier call recorded is
not asked for again, so a run that was cut off goes on with what is missing.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
Wanted = tuple[str, Path, Stat]
PATIENT = Ranges(count=32, connections=8, tries=8, first_wait_s=5.0, longest_wait_s=120.0)
"""For servers that throttle each connection and cut long ones, as Zenodo's."""
SMALL_BYTES = 8 << 20
"""Up to this size a file comes in one request, and eight files at once."""
RECORDS = ".success"
_BEGINS = {
    ".parquet": rb"PAR1", ".gz": rb"\x1f\x8b", ".tgz": rb"\x1f\x8b", ".zip": rb"PK", ".whl": rb"PK",
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", ".xz": rb"\xfd7zXZ", ".bz2": rb"BZh",
    ".deb": rb"!<arch>\n", ".warc": rb"WARC/",
}  # fmt: skip
_PAGE = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)


@dataclass(frozen=True)
class Staging:
    """Where files are put, and how patiently they are fetched."""

    out: Path
    """The artifact: files go below archives/, records below .success/."""
    say: Say
    ranges: Ranges = PATIENT

    def known(self) -> dict[str, Entry]:
        """What an earlier call recorded, by file."""
        manifest = self.out / "manifest.json"
        found = read_json(manifest)["archives"] if manifest.exists() else []
        found += [read_json(path) for path in (self.out / RECORDS).walk()]
        return {entry["file"]: entry for entry in found}


def bring_files(source: Files, staging: Staging, known: dict[str, Entry]) -> list[Entry]:
    """Bring the files that the patterns name; an entry of the manifest for each, in the order of names."""
    wanted = _listed(source)
    entries: dict[str, Entry] = {}
    lock = threading.Lock()

    def one(file: Wanted) -> None:
        entry = _entry(source, file[0], file[1], file[2])
        found = _whole(staging.out, entry, known) or _bring(file, entry, staging)
        with lock:
            entries[file[0]] = found
            staging.say(source.name, len(entries), len(wanted))

    small = [file for file in wanted if file[2].size_bytes <= SMALL_BYTES]
    run_all(one, small, staging.ranges.connections)
    run_all(one, [file for file in wanted if file[2].size_bytes > SMALL_BYTES], 1)
    return [entries[name] for name, _, _ in wanted]


def bring_page(source: Source, staging: Staging, known: dict[str, Entry]) -> Entry:
    """Bring one file of the web, which must have the pinned sha256."""
    place = Path(source.package)
    entry = _entry(source, source.file, place, Stat(0, 0, "")) | {"sha256": source.sha256}
    found = known.get(source.file)
    if found and found["sha256"] == source.sha256 and _is_there(staging.out, found):
        return found
    try:
        stat = place.stat()
    except NoRanges:
        stat = Stat(0, 0, "")
    entry = _bring((source.file, place, stat), entry | {"bytes": stat.size_bytes}, staging)
    staging.say(source.file, 1, 1)
    return entry


def _listed(source: Files) -> list[Wanted]:
    root = Path(source.place)
    if root.scheme != "hf" and root.exists() and not root.is_dir():
        return [(f"{source.name}/{root.name}", root, root.stat())]
    found = dict(pair for pattern in source.files for pair in matching(root, pattern))
    names = {}
    for path in sorted(found):
        stat, name = found[path] or (None if path.is_dir() else path.stat()), path.relative_to(root)
        if stat is not None:
            try:
                check_name(name, source.place)
            except ConfigError as error:
                raise InputError(str(error)) from None
            names[f"{source.name}/{name}"] = (path, stat)
    if not names:
        raise InputError(
            f"{source.place} holds no file that fits {', '.join(source.files)}. Correct the patterns of "
            f"{source.name}."
        )
    return [(name, path, stat) for name, (path, stat) in names.items()]


def _entry(source: AnySource, file: str, place: Path, stat: Stat) -> Entry:
    is_archive = isinstance(source, Source)
    return {
        "file": file,
        "registry": source.registry if is_archive else place.scheme,
        "package": source.package if is_archive else source.name,
        "version": source.version,
        "address": str(place),
        "etag": stat.etag,
        "bytes": stat.size_bytes,
        "license": source.license,
        "domain": ", ".join(piece.domain for piece in source.slices),
        "slices": [encode(piece) for piece in source.slices],
    }


def _whole(out: Path, entry: Entry, known: dict[str, Entry]) -> Entry | None:
    found = known.get(entry["file"])
    same = found and all(found.get(key) == entry[key] for key in ("address", "etag", "bytes"))
    return entry | {"sha256": found["sha256"]} if found and same and _is_there(out, found) else None


def _is_there(out: Path, entry: Entry) -> bool:
    file = out / "archives" / entry["file"]
    return file.exists() and file.size() == entry["bytes"]


def _bring(file: Wanted, entry: Entry, staging: Staging) -> Entry:
    """Bring one file, hold it against what is known of it, and record it."""
    name, place, stat = file
    target = staging.out / "archives" / name
    _copy(place, stat, target, staging)
    size, digest = sha256(target)
    # The hub's version of a large file is its sha256.
    pinned = entry.get("sha256") or (stat.etag if re.fullmatch("[0-9a-f]{64}", stat.etag) else digest)
    wrong = f"sha256 {digest} instead of {pinned}" if digest != pinned else _fault(target, size)
    if wrong:
        target.remove()
        raise InputError(
            f"{place} has {wrong}: it is not the file that was meant, and was removed. Look at what the "
            "server sends, then fetch again."
        )
    entry = entry | {"bytes": size, "sha256": digest}
    write_json(staging.out / RECORDS / f"{name}.json", entry)
    return entry


def _copy(place: Path, stat: Stat, target: Path, staging: Staging) -> None:
    if place.scheme not in ("https", "http") and (place.is_local or stat.size_bytes <= SMALL_BYTES):
        try:
            publish(place.chunks(), target, stat.size_bytes)
            return
        except Refused:
            raise
        except StorageError:
            if place.is_local:
                raise
            # Cut more often than one request bears: the ranges below go on as long as it moves.
            staging.say(f"{target.name}: in ranges", 0, 1)
    try:
        if not stat.size_bytes:
            raise NoRanges(f"{place} has no known size.")
        download(place, target.local, staging.ranges)
    except NoRanges:
        staging.say(f"{target.name}: whole, its server gives no ranges", 0, 1)
        with target.open_writer() as writer:
            writer.writelines(place.chunks())


def _fault(file: Path, size_bytes: int) -> str:
    """What is wrong with a file by its first bytes; empty if they fit its name."""
    suffix = PurePosixPath(file.name).suffix
    head, begins = file.read_range(0, 64), _BEGINS.get(suffix)
    if not size_bytes and (begins or not suffix):
        return "no bytes"
    if _PAGE.match(head) and suffix not in (".html", ".htm", ".xhtml", ".xml"):
        return f"an HTML page in place of {suffix or 'data'}"
    if begins and not re.match(begins, head, re.DOTALL):
        return f"the first bytes {head[:8]!r}, which no {suffix} has"
    if suffix == ".parquet" and file.read_range(size_bytes - 4, 4) != b"PAR1":
        return "no footer, so it was cut off"
    return ""
