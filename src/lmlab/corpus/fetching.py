"""All sources of an artifact: archives from the cache, pip, npm and apt, files of places, the interpreter."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path as LocalPath
from tempfile import TemporaryDirectory
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.corpus.download import download, sha256_of
from lmlab.corpus.interpreter import pack
from lmlab.corpus.places import PATIENT, RECORDS, Ranges, Say, bring_all, describe, recorded
from lmlab.corpus.registry import SOURCE_NAMES, AnySource, Files, Source
from lmlab.storage import Path, write_json


def fetch_all(sources: Sequence[AnySource], out: Path, say: Say, ranges: Ranges = PATIENT) -> dict[str, Any]:
    """Put what all sources name below out/archives and write out/manifest.json; the manifest.

    What an earlier call brought is not fetched again. `ranges` says how patiently large files are.
    """
    names = Counter(source.name if isinstance(source, Files) else source.file for source in sources)
    if len(names) < len(sources) or not sources:
        twice = f"{names.most_common(1)[0][0]} is the name of two sources. Rename one." if sources else ""
        raise ConfigError(twice or "sources is empty: there is nothing to fetch. Name at least one.")
    known, entries = recorded(out), []
    archives = [s for s in sources if isinstance(s, Source) and s.registry not in ("interpreter", "web")]
    with TemporaryDirectory(prefix="lmlab-fetch-") as folder:
        files = dict(zip(archives, download(archives, say), strict=True)) if archives else {}
        for source in sources:
            if isinstance(source, Files) or source.registry == "web":
                entries += bring_all(source, out, say, known, ranges)
            elif source.registry == "interpreter":
                packed = LocalPath(folder) / source.file
                version = {"version": pack(packed)}
                entries.append(_keep(source, out, packed) | version)
            else:
                entries.append(_keep(source, out, files[source]))
    if brought := [entry for entry in entries if "etag" in entry]:
        write_json(out / f"{RECORDS}.json", brought)
    (out / RECORDS).remove_tree()
    listed = [{key: value for key, value in entry.items() if key != "etag"} for entry in entries]
    manifest = {"source": _name(sources), "archives": listed}
    write_json(out / "manifest.json", manifest)
    return manifest


def _keep(source: Source, out: Path, file: LocalPath) -> dict[str, Any]:
    with (out / "archives" / source.file).writer() as temporary:
        shutil.copyfile(file, temporary)
    known = {"sha256": source.sha256 or sha256_of(file), "bytes": file.stat().st_size}
    return describe(source, source.file) | known


def _name(sources: Sequence[AnySource]) -> str:
    registries = {source.registry if isinstance(source, Source) else source.name for source in sources}
    found = [name for name in SOURCE_NAMES if set(name.split("+")) == registries]
    return found[0] if found else "stdlib" if registries == {"interpreter"} else "+".join(sorted(registries))
