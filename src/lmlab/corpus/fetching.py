"""All sources of an artifact: archives from the cache, pip, npm and apt, files of places, the interpreter."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path as LocalPath
from tempfile import TemporaryDirectory
from typing import Any

from lmlab.core.config import encode
from lmlab.core.errors import ConfigError
from lmlab.corpus.download import download, other_choices, sha256_of
from lmlab.corpus.interpreter import pack
from lmlab.corpus.places import PATIENT, RECORDS, Ranges, Staging, bring_files, bring_page
from lmlab.corpus.registry import SOURCE_NAMES, AnySource, Files, Source
from lmlab.storage import Path, write_json

Say = Callable[[str, int, int], None]


def fetch_all(sources: Sequence[AnySource], out: Path, say: Say, ranges: Ranges = PATIENT) -> dict[str, Any]:
    """Put what all sources name below out/archives and write out/manifest.json; the manifest.

    What an earlier call brought is not fetched again. `ranges` says how patiently large files are.
    """
    if not sources:
        raise ConfigError(f"sources is empty, so there is nothing to fetch. {other_choices(sources)}")
    names = Counter(source.name if isinstance(source, Files) else source.file for source in sources)
    if names.most_common(1)[0][1] > 1:
        name = names.most_common(1)[0][0]
        raise ConfigError(f"{name} is the name of two sources, so one would replace the other. Rename it.")
    staging = Staging(out, say, ranges)
    known = staging.known()
    with TemporaryDirectory(prefix="lmlab-fetch-") as folder:
        archives = [s for s in sources if isinstance(s, Source) and s.registry not in ("interpreter", "web")]
        files = dict(zip(archives, download(archives, say), strict=True)) if archives else {}
        entries: list[dict[str, Any]] = []
        for source in sources:
            if isinstance(source, Files):
                entries += bring_files(source, staging, known)
            elif source.registry == "web":
                entries.append(bring_page(source, staging, known))
            elif source.registry == "interpreter":
                packed = LocalPath(folder) / source.file
                version = pack(packed)
                entries.append(_keep(source, version, packed, out))
            else:
                entries.append(_keep(source, source.version, files[source], out))
    manifest = {"source": _name(sources), "archives": entries}
    write_json(out / "manifest.json", manifest)
    (out / RECORDS).remove_tree()
    return manifest


def _keep(source: Source, version: str, file: LocalPath, out: Path) -> dict[str, Any]:
    with (out / "archives" / source.file).writer() as temporary:
        shutil.copyfile(file, temporary)
    return {
        "file": source.file,
        "registry": source.registry,
        "package": source.package,
        "version": version,
        "sha256": source.sha256 or sha256_of(file),
        "bytes": file.stat().st_size,
        "license": source.license,
        "domain": ", ".join(piece.domain for piece in source.slices),
        "slices": [encode(piece) for piece in source.slices],
    }


def _name(sources: Sequence[AnySource]) -> str:
    registries = {source.registry if isinstance(source, Source) else source.name for source in sources}
    found = [name for name in SOURCE_NAMES if set(name.split("+")) == registries]
    return found[0] if found else "stdlib" if registries == {"interpreter"} else "+".join(sorted(registries))
