"""Made-up prose, and archives that hold given members."""

import io
import tarfile
import zipfile
from pathlib import Path as LocalPath

import numpy as np

WORDS = np.array(
    [
        a + b + c
        for a in ("ba", "de", "ki", "lo", "mu", "ra")
        for b in "nrst"
        for c in ("a", "el", "on", "ost", "um")
    ]
)


def prose(seed: int, words: int, paragraph: int = 60) -> str:
    """Random text of made-up words, in paragraphs."""
    chosen = np.random.default_rng(seed).choice(WORDS, words).tolist()
    lines = [" ".join(chosen[i : i + paragraph]) for i in range(0, words, paragraph)]
    return "\n\n".join(lines)


def write_tar(path: LocalPath, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_zip(path: LocalPath, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
