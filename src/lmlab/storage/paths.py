"""One path type for files in local folders and in object stores.

A write is atomic everywhere: what is visible is whole. `create_bytes` (put-if-absent) is the one primitive on
which claims and records rest. Local reads and listings go straight to the system, everything else to obstore.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Generator
from functools import total_ordering
from typing import Any

import msgspec
import obstore
from obstore.exceptions import BaseError

from lmlab.core.errors import ConfigError, InputError, StorageError
from lmlab.storage import stores

# What obstore leaves when it is killed between writing and renaming; never data.
_UNFINISHED = re.compile(r".*#\d+$|^\..*\.unfinished$")

Paths = list["Path"]


@total_ordering
class Path:
    """A place: `Path("/data")`, `Path("file:///data")` or `Path("memory://name")`.

    >>> Path("/data") / "tokens" / "ledger.json"
    Path('/data/tokens/ledger.json')
    """

    __slots__ = ("_bucket", "_key", "_scheme")

    def __init__(self, location: "str | os.PathLike[str]") -> None:
        text = str(location) if isinstance(location, Path) else os.fspath(location)
        scheme, found, rest = text.partition("://")
        if not found or scheme == "file":
            self._scheme, self._bucket = "file", ""
            self._key = os.path.abspath(rest if found else text)  # noqa: PTH100 - pathlib keeps `..`
        else:
            self._scheme = scheme
            self._bucket, _, key = rest.partition("/")
            self._key = key.strip("/")
            if scheme not in stores.SCHEMES or not self._bucket:
                known = ", ".join(f"{name}://" for name in stores.SCHEMES)
                raise ConfigError(
                    f"{text} is no place lmlab knows how to reach. Use a folder, or one of {known}."
                )

    # -- the name ---------------------------------------------------------------------------------

    def __truediv__(self, part: str) -> "Path":
        if part.startswith("/") or ".." in part.split("/"):
            raise ConfigError(f"{part!r} would lead outside {self}. Join only names below a folder.")
        child = object.__new__(Path)
        child._scheme, child._bucket = self._scheme, self._bucket
        child._key = f"{self._key.rstrip('/')}/{part}".rstrip("/") if self._key else part.rstrip("/")
        return child

    def __str__(self) -> str:
        return self._key if self.is_local else f"{self._scheme}://{self._bucket}/{self._key}".rstrip("/")

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __fspath__(self) -> str:
        return str(self.local)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and str(self) == str(other)

    def __lt__(self, other: "Path") -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type["Path"], tuple[str]]:
        return Path, (str(self),)

    @property
    def name(self) -> str:
        """The last part."""
        return self._key.rpartition("/")[2]

    @property
    def parent(self) -> "Path":
        """The folder this lies in; the top is its own parent."""
        parent = object.__new__(Path)
        parent._scheme, parent._bucket = self._scheme, self._bucket
        parent._key = self._key.rpartition("/")[0] or ("/" if self.is_local else "")
        return parent

    def relative_to(self, folder: "Path") -> str:
        """The part of this path below `folder`."""
        prefix = str(folder).rstrip("/") + "/"
        if not str(self).startswith(prefix):
            raise ConfigError(f"{self} does not lie below {folder}.")
        return str(self)[len(prefix) :]

    @property
    def is_local(self) -> bool:
        """Whether this is a file or folder of this machine."""
        return self._scheme == "file"

    @property
    def local(self) -> pathlib.Path:
        """The same place for libraries that open files themselves."""
        if not self.is_local:
            raise StorageError(f"{self} is not on this machine's disk, and this needs a local file.")
        return pathlib.Path(self._key)

    # -- reading ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a file (or, locally, a folder) is there."""
        if self.is_local:
            return os.path.exists(self._key)  # noqa: PTH110 - a hot path
        try:
            obstore.head(self._client, self._key)
        except FileNotFoundError:
            return self.is_dir()
        return True

    def is_dir(self) -> bool:
        """Whether there is a folder; in an object store: anything below this name."""
        return os.path.isdir(self._key) if self.is_local else bool(self.list())  # noqa: PTH112 - a hot path

    def size(self) -> int:
        """Bytes of the file."""
        with self._reading():
            if self.is_local:
                return os.stat(self._key).st_size  # noqa: PTH116 - a hot path
            return obstore.head(self._client, self._key)["size"]

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self._reading():
            return self._read()

    def read_text(self) -> str:
        """The whole file as UTF-8."""
        return self.read_bytes().decode()

    def read_if_present(self) -> bytes | None:
        """The whole file, or None if there is none."""
        try:
            return self._read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (BaseError, OSError) as error:
            raise stores.translate(error, str(self), "read") from error

    def list(self) -> "Paths":
        """Direct children, sorted; none if the folder is not there."""
        if not self.is_local:
            found = obstore.list_with_delimiter(self._client, self._key or None)
            keys = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
            return sorted(self / key.removeprefix(self._key).strip("/") for key in keys)
        try:
            names = sorted(os.listdir(self._key))  # noqa: PTH208 - a hot path
        except FileNotFoundError:
            return []
        except OSError as error:
            raise stores.translate(error, str(self), "listed") from error
        return [self / name for name in names if not _UNFINISHED.match(name)]

    def walk(self) -> "Paths":
        """All files below, sorted."""
        if not self.is_local:
            batches = obstore.list(self._client, self._key or None)
            keys = [entry["path"] for batch in batches for entry in batch]
            return sorted(self / key.removeprefix(self._key).strip("/") for key in keys)
        files: Paths = []
        folders: Paths = [self]
        while folders:
            for child in folders.pop().list():
                if child.is_dir() and not os.path.islink(child._key):  # noqa: PTH114 - a hot path
                    folders.append(child)
                else:
                    files.append(child)
        return sorted(files)

    # -- writing ----------------------------------------------------------------------------------

    def write_bytes(self, data: bytes) -> None:
        """Replace the file; a reader sees the old or the new content, never a part."""
        self._put(data, create=False)

    def write_text(self, text: str) -> None:
        """Replace the file with UTF-8 text."""
        self.write_bytes(text.encode())

    def create_bytes(self, data: bytes) -> bool:
        """Write the file if it is absent; False if somebody else's is there. One caller wins."""
        return self._put(data, create=True)

    @contextlib.contextmanager
    def writer(self) -> Generator[pathlib.Path]:
        """A temporary local path that becomes this file when the block ends well, for other libraries."""
        if self.is_local:
            self.parent.make_folder()
            draft = self.local.with_name(f".{self.name}.{secrets.token_hex(4)}.unfinished")
        else:
            draft = pathlib.Path(tempfile.mkdtemp()) / self.name
        try:
            yield draft
            if self.is_local:
                draft.replace(self.local)
            else:
                self.write_bytes(draft.read_bytes())
        except OSError as error:
            raise stores.translate(error, str(self), "written") from error
        finally:
            _discard(draft if self.is_local else draft.parent)

    def make_folder(self) -> None:
        """Make this folder and those above it; an object store needs none."""
        if not self.is_local:
            return
        try:
            os.makedirs(self._key, exist_ok=True)  # noqa: PTH103 - a hot path
        except OSError as error:
            raise stores.translate(error, str(self), "made") from error

    def remove(self) -> None:
        """Remove the file, if it is there."""
        try:
            if self.is_local:
                pathlib.Path(self._key).unlink(missing_ok=True)
            else:
                obstore.delete(self._client, self._key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise stores.translate(error, str(self), "removed") from error

    def remove_tree(self) -> None:
        """Remove the folder and everything below, or the file."""
        if not self.is_local:
            for path in self.walk():
                path.remove()
            return
        try:
            _discard(pathlib.Path(self._key))
        except OSError as error:
            raise stores.translate(error, str(self), "removed") from error

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _client(self) -> stores.Store:
        return stores.open_store(self._scheme, self._bucket)

    def _read(self) -> bytes:
        if self.is_local:
            with open(self._key, "rb") as file:  # noqa: PTH123 - a hot path
                return file.read()
        return bytes(obstore.get(self._client, self._key).bytes())

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise stores.translate(error, str(self), "read") from error

    def _put(self, data: bytes, *, create: bool) -> bool:
        if self.is_local:
            # Made here because obstore loops for ever where a folder can't be made.
            self.parent.make_folder()
        return stores.put(self._client, self._key.lstrip("/"), data, create=create, place=str(self))


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises InputError naming the file if it is not JSON."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not valid JSON ({error}). Write it anew, or remove it.") from error


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON with sorted keys, atomically: equal values give equal bytes."""
    ordered = msgspec.json.encode(value, order="sorted")
    path.write_bytes(msgspec.json.format(ordered, indent=2) + b"\n")


def _discard(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
