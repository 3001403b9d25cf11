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


class Source(io.RawIOBase):
    """Reads byte ranges; stands below a buffer."""

    def __init__(self, path: "Path", stat: "Stat") -> None:
        self._path, self._stat, self._position = path, stat, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._stat.size_bytes)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._stat.size_bytes - self._position)
        data = self._path.read_range(self._position, wanted, self._stat.etag)
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
