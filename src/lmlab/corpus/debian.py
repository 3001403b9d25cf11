"""The files of a Debian package as one stream of tar: nothing is unpacked to disk, nothing installed.

Links are no files of their own, so a page that lies under three names is read once.
"""

import io
from typing import Any

_HEADER = 60


def data_tar(file: io.BufferedIOBase) -> tuple[str, io.BufferedReader]:
    """Name and packed bytes of the package's data.tar; EOFError if the package is cut off or is none."""
    if file.read(8) != b"!<arch>\n":
        raise EOFError("it does not begin as a Debian package does")
    while len(header := file.read(_HEADER)) == _HEADER and header.endswith(b"`\n"):
        name, size = header[:16].decode("ascii", "replace").strip(" /"), int(header[48:58])
        if name.startswith("data.tar"):
            return name, io.BufferedReader(_Member(file, size), 1 << 20)
        file.seek(size + size % 2, io.SEEK_CUR)
    raise EOFError("it holds no data.tar")


class _Member(io.RawIOBase):
    """A part of a file, as a file that ends where it ends."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        if not data and self._left:
            raise EOFError(f"{self._left} bytes are missing")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)
