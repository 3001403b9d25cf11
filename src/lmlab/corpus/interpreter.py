"""The offline source: the running interpreter's own library and documentation topics, packed as an archive.

It depends on the interpreter alone: names in order, one fixed date, so packing twice gives equal bytes.
"""

import platform
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

from lmlab.core.errors import HostError, InputError

_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__")


def pack(target: Path) -> str:
    """Write the archive to `target`; the Python version it came from."""
    library = Path(sysconfig.get_path("stdlib"))
    try:
        from pydoc_data.topics import topics
    except ImportError:
        topics = {}
    if not topics or not library.is_dir():
        lacks = f"library in {library}" if topics else "pydoc_data.topics"
        raise HostError(f"This Python has no {lacks}. Choose another source: pypi+npm or pypi.")
    pages = ((f"topics/{topic}.txt", content.encode()) for topic, content in sorted(topics.items()))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in (*_code(library), *pages):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return platform.python_version()


def _code(library: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(library.rglob("*.py"), key=lambda path: path.as_posix()):
        name = path.relative_to(library)
        if any(part in _LEFT_OUT or part.startswith("config-") for part in name.parts):
            continue
        try:
            yield f"lib/{name.as_posix()}", path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} can't be read ({error.strerror}). Make it readable.") from error
