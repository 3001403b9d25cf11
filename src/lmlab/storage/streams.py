"""Files in object stores as Python's own file objects, which pyarrow, zstandard and gzip understand.

obstore's readers and writers lack what these ask for (`closed`, `readinto`, flags). A reader asks for one
version of the file, so that one which is replaced meanwhile is an error and never a mixture.
"""

import io
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError

from lmlab.storage import stores

if TYPE_CHECKING:
    from lmlab.storage.paths import Path, Stat


_FIRST, _LARGEST = 1 << 20, 16 << 20


class Source(io.RawIOBase):
    """Reads byte ranges, more at once the longer it is read in order; stands below a buffer."""

    def __init__(self, path: "Path", stat: "Stat") -> None:
        self._path, self._stat, self._position = path, stat, 0
        self._window, self._start, self._ahead = b"", 0, _FIRST // 2

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._stat.size_bytes)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._stat.size_bytes - self._position)
        if wanted <= 0:
            return 0
        if not 0 <= self._position - self._start < len(self._window):
            # Each request waits 20 to 100 ms for its first byte.
            is_next = self._position == self._start + len(self._window)
            self._ahead = min(self._ahead * 2, _LARGEST) if is_next else _FIRST // 2
            length = max(wanted, self._ahead if is_next else 0)
            self._window = self._path.read_range(self._position, length, self._stat.etag)
            self._start = self._position
        first = self._position - self._start
        data = memoryview(self._window)[first : first + wanted]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class Sink(io.BufferedIOBase):
    """Writes into an upload, which its owner completes: closing this alone publishes nothing."""

    def __init__(self, path: "Path", upload: Any) -> None:
        self._path, self._upload, self._position = path, upload, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        try:
            self._upload.write(bytes(data))
        except (BaseError, OSError) as error:
            raise stores.translate(error, str(self._path), "written") from error
        written = memoryview(data).nbytes
        self._position += written
        return written
