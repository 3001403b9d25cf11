"""One path type for files in local folders and in object stores.

A write is atomic everywhere: what is visible is whole. `create_bytes` (put-if-absent) is the one primitive on
which claims and records rest. Local reads and listings go straight to the system, everything else to a client
of `stores`. What is read from another region is charged to the run's transfer budget first.
"""

import contextlib
import errno
import io
import os
import pathlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

import msgspec
import obstore
from obstore.exceptions import BaseError, PreconditionError

from lmlab.core.errors import ConfigError, InputError, Refused, StorageError
from lmlab.storage import budget, regions, stores, streams

# What is left by a writer that is killed before it renames; never data.
_UNFINISHED = re.compile(r"^\..*\.unfinished$")
_ODD = re.compile(r"(^|/)\.{1,2}(/|$)|//|[\x00-\x1f\x7f]")
_BLOCK = 1 << 20
_PART = 16 << 20
"""Sent at once by a writer: stores take 10,000 parts, so a file of 160 GB."""
_COPIED_AT_ONCE = 5 << 30
"""What S3 copies in one request at most."""

Paths = list["Path"]


@dataclass(frozen=True)
class Stat:
    """What a store knows of a file without reading it."""

    size_bytes: int
    modified: float
    """In seconds since 1970, by the store's clock."""
    etag: str
    """Changes when the content does."""


Listing = list[tuple["Path", Stat]]
Children = list[tuple["Path", "Stat | None"]]


@total_ordering
class Path:
    """A place: a folder or file (`/data`, `file:///data`), or `scheme://bucket/key`.

    The schemes are s3, gs, memory, and to read only https and hf (`hf://datasets/owner/name@revision/file`).
    `scheme`, `bucket` and `key` (of a local file its absolute path) never change.

    >>> Path("/data") / "tokens" / "ledger.json"
    Path('/data/tokens/ledger.json')
    """

    __slots__ = ("bucket", "key", "scheme")

    def __init__(self, location: "str | os.PathLike[str]") -> None:
        text = str(location) if isinstance(location, Path) else os.fspath(location)
        scheme, found, rest = text.partition("://")
        if not found or scheme == "file":
            self.scheme, self.bucket = "file", ""
            self.key = os.path.abspath(rest if found else text)  # noqa: PTH100 - pathlib keeps `..`
            return
        self.scheme = scheme
        self.bucket, _, key = rest.partition("/")
        self.key = key.strip("/")
        if scheme not in stores.SCHEMES or not self.bucket:
            known = ", ".join(f"{name}://" for name in stores.SCHEMES)
            raise ConfigError(
                f"{text} is no place lmlab knows how to reach. Use a folder, or one of {known}."
            )
        if self.key and _ODD.search(self.key):
            raise ConfigError(f"{text!r} has an empty, dotted or unprintable part. Name it otherwise.")

    # -- the name ---------------------------------------------------------------------------------

    def __truediv__(self, part: str) -> "Path":
        if part.startswith("/") or ".." in part.split("/"):
            raise ConfigError(f"{part!r} would lead outside {self}. Join only names below a folder.")
        if self.scheme != "file" and _ODD.search(part.rstrip("/")):
            raise ConfigError(f"{part!r} has an empty, dotted or unprintable part. Name it otherwise.")
        return self._at(f"{self.key.rstrip('/')}/{part}".rstrip("/") if self.key else part.rstrip("/"))

    def __str__(self) -> str:
        return self.key if self.is_local else f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

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
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "Path":
        """The folder this lies in; the top is its own parent."""
        return self._at(self.key.rpartition("/")[0] or ("/" if self.is_local else ""))

    def relative_to(self, folder: "Path") -> str:
        """The part of this path below `folder`."""
        prefix = str(folder).rstrip("/") + "/"
        if not str(self).startswith(prefix):
            raise ConfigError(f"{self} does not lie below {folder}.")
        return str(self)[len(prefix) :]

    @property
    def is_local(self) -> bool:
        """Whether this is a file or folder of this machine."""
        return self.scheme == "file"

    @property
    def local(self) -> pathlib.Path:
        """The same place for libraries that open files themselves."""
        if not self.is_local:
            raise StorageError(f"{self} is not on this machine's disk, and this needs a local file.")
        return pathlib.Path(self.key)

    # -- reading ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a file or a folder is there."""
        if self.is_local:
            return os.path.exists(self.key)  # noqa: PTH110 - a hot path
        with self._failures("read"):
            try:
                self._client.head(self.key)
            except FileNotFoundError:
                return self.is_dir()
            return True

    def is_dir(self) -> bool:
        """Whether there is a folder; in an object store: anything below this name."""
        if self.is_local:
            return os.path.isdir(self.key)  # noqa: PTH112 - a hot path
        if self.scheme in ("https", "http"):
            return False
        with self._failures("listed"):
            return next(iter(self._client.list(self.key or None, chunk_size=1)), None) is not None

    def stat(self) -> Stat:
        """Size, time and version of the file, without reading it."""
        with self._failures("read"):
            if self.is_local:
                # A link to nothing is a file too: it can be listed and removed.
                is_whole = os.path.exists(self.key)  # noqa: PTH110 - a hot path
                found = os.stat(self.key, follow_symlinks=is_whole)  # noqa: PTH116 - a hot path
                return Stat(found.st_size, found.st_mtime, f"{found.st_mtime_ns:x}-{found.st_ino:x}")
            return _stat(self._client.head(self.key))

    def size(self) -> int:
        """Bytes of the file."""
        return self.stat().size_bytes

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self._failures("read"):
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

    def read_range(self, start: int, length: int, etag: str = "") -> bytes:
        """At most `length` bytes from `start`: fewer at the end of the file. `etag` asks for that version."""
        if length <= 0:
            return b""
        with self._failures("read"):
            if self.is_local:
                self._pay(start, length)
                with open(self.key, "rb") as file:  # noqa: PTH123 - a hot path
                    file.seek(start)
                    return file.read(length)
            wanted: dict[str, Any] = {"range": (start, start + length)}
            try:
                return bytes(self._get(wanted | {"if_match": etag} if etag else wanted).bytes())
            except BaseError as error:
                if "416 Range Not Satisfiable" in str(error):
                    return b""
                raise

    def chunks(self, start: int = 0, end: int | None = None, etag: str = "") -> Iterator[bytes]:
        """The file, or a range of it, in blocks of about 1 MiB, for what is too large for memory."""
        with self._failures("read"):
            if self.is_local:
                last = (1 << 62) if end is None else end
                self._pay(start, last - start)
                with open(self.key, "rb") as file:  # noqa: PTH123 - a hot path
                    file.seek(start)
                    while block := file.read(min(_BLOCK, last - start)):
                        start += len(block)
                        yield block
            else:
                wanted = {"range": (start, end)} if end is not None else {}
                answer = self._get(wanted | {"if_match": etag} if etag else wanted)
                if end is not None and not start == answer.range[0] < answer.range[1] <= end:
                    raise StorageError(f"{self} was asked for bytes {start} to {end} and gave others.")
                for part in answer.stream(min_chunk_size=_BLOCK):
                    yield bytes(part)

    def open(self) -> io.BufferedIOBase:
        """A seekable file for pyarrow, zstandard and the like; what is not read is not fetched."""
        if not self.is_local:
            return io.BufferedReader(streams.Source(self, self.stat()), _BLOCK)
        with self._failures("read"):
            self._pay()
            return open(self.key, "rb")  # noqa: PTH123 - a hot path

    def list(self) -> "Paths":
        """Direct children, sorted; none if the folder is not there."""
        if not self.is_local:
            return sorted(path for path, _ in self.children())
        try:
            names = sorted(os.listdir(self.key))  # noqa: PTH208 - a hot path
        except FileNotFoundError:
            return []
        except OSError as error:
            raise stores.translate(error, str(self), "listed") from error
        return [self / name for name in names if not _UNFINISHED.match(name)]

    def walk(self) -> "Paths":
        """All files below, sorted."""
        if not self.is_local:
            return [path for path, _ in self.walk_stats()]
        files: Paths = []
        folders: Paths = [self]
        while folders:
            for child in folders.pop().list():
                if child.is_dir() and not os.path.islink(child.key):  # noqa: PTH114 - a hot path
                    folders.append(child)
                else:
                    files.append(child)
        return sorted(files)

    def walk_stats(self) -> "Listing":
        """All files below with their sizes, sorted: from one listing, whose pages hold 1,000 files each."""
        if self.is_local:
            return [(path, path.stat()) for path in self.walk()]
        with self._failures("listed"):
            batches = self._client.list(self.key or None, chunk_size=1000)
            found = {entry["path"]: _stat(entry) for batch in batches for entry in batch}
        # Some programs leave an empty object named like the folder.
        folders = {key.rpartition("/")[0] for key in found} | {self.key}
        files = [key for key, stat in found.items() if stat.size_bytes or key not in folders]
        return [(self._at(key), found[key]) for key in sorted(files)]

    def glob(self, pattern: str) -> "Paths":
        """Files and folders below that fit: `*`, `?`, `[…]` within a name, `**` across folders, `{a,b}`.

        As in a shell `*` leaves out names that begin with a dot, so no record is taken for data. Only folders
        that can hold a match are listed, but for `**`, which gives files from one listing of all.
        """
        from lmlab.storage.globbing import matches

        return matches(self, pattern)

    # -- writing ----------------------------------------------------------------------------------

    def write_bytes(self, data: bytes) -> None:
        """Replace the file; a reader sees the old or the new content, never a part."""
        if self.is_local:
            stores.put_here(self.key, data, create=False)
        else:
            stores.put(self._to_write, self.key, data, str(self))

    def write_text(self, text: str) -> None:
        """Replace the file with UTF-8 text."""
        self.write_bytes(text.encode())

    def create_bytes(self, data: bytes) -> bool:
        """Write the file if it is absent; False if somebody else's is there. One caller wins."""
        if self.is_local:
            return stores.put_here(self.key, data, create=True)
        self._check_writable()
        return stores.create(self.scheme, self.bucket, self.key, data, str(self))

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
                stores.put(self._to_write, self.key, draft, str(self))
        except OSError as error:
            # Another file's error is the caller's.
            if error.errno in stores.FULL or error.filename == str(draft):
                raise stores.translate(error, str(self), "written") from error
            raise
        finally:
            _discard(draft if self.is_local else draft.parent)

    @contextlib.contextmanager
    def open_writer(self) -> Generator[io.BufferedIOBase]:
        """A file to write into, sent in parts as it grows; it becomes visible when the block ends well."""
        if self.is_local:
            with self.writer() as draft, draft.open("wb") as file:
                yield file
            return
        with self._failures("written"):
            upload = obstore.open_writer(self._to_write, self.key, buffer_size=_PART)
        sink = streams.Sink(self, upload)
        try:
            yield sink
        except BaseException as error:
            upload.__exit__(type(error), error, None)
            raise
        with self._failures("written"):
            upload.close()

    def copy_to(self, other: "Path") -> None:
        """Copy the file; within a bucket the store itself does it."""
        other._check_writable()
        if self.is_local:
            self._pay()
        if self.is_local and other.is_local:
            with other.writer() as draft, self._failures("read"):
                shutil.copyfile(self.key, draft)
        elif self.is_local:
            stores.put(other._client, other.key, self.local, str(other))
        elif (self.scheme, self.bucket) == (other.scheme, other.bucket) and self.size() <= _COPIED_AT_ONCE:
            with self._failures("copied"):
                obstore.copy(self._client, self.key, other.key)
        else:
            with other.open_writer() as file:
                for chunk in self.chunks():
                    file.write(chunk)

    def rename(self, other: "Path") -> None:
        """Move the file, replacing what is there; on a local disk in one step."""
        if self == other:
            return
        if self.is_local and other.is_local:
            other.parent.make_folder()
            try:
                os.replace(self.key, other.key)  # noqa: PTH105 - both are text
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise stores.translate(error, str(self), "moved") from error
            else:
                return
        self.copy_to(other)
        self.remove()

    def make_folder(self) -> None:
        """Make this folder and those above it; an object store needs none."""
        if not self.is_local:
            return
        try:
            os.makedirs(self.key, exist_ok=True)  # noqa: PTH103 - a hot path
        except OSError as error:
            raise stores.translate(error, str(self), "made") from error

    def remove(self) -> None:
        """Remove the file, if it is there."""
        with self._failures("removed"), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.key)  # noqa: PTH108 - a hot path
            else:
                self._to_write.delete(self.key)

    def remove_tree(self) -> None:
        """Remove the folder and everything below, or the file; in an object store many in one request."""
        with self._failures("removed"):
            if self.is_local:
                _discard(pathlib.Path(self.key))
                return
            if self.key:
                self.remove()
            batches = self._to_write.list(self.key or None, chunk_size=1000)
            keys = [entry["path"] for batch in batches for entry in batch]
            try:
                self._client.delete(keys)
            except FileNotFoundError:
                # Another process is removing the same.
                for key in keys:
                    self._at(key).remove()

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return stores.open_store(self.scheme, self.bucket)

    @property
    def _to_write(self) -> Any:
        self._check_writable()
        return self._client

    def _check_writable(self) -> None:
        if self.scheme in ("hf", "https", "http"):
            raise StorageError(
                f"{self} can only be read. Copy it into a root (lmlab fs cp), and change it there."
            )

    def _at(self, key: str) -> "Path":
        path = object.__new__(Path)
        path.scheme, path.bucket, path.key = self.scheme, self.bucket, key
        return path

    def _read(self) -> bytes:
        if self.is_local:
            self._pay()
            with open(self.key, "rb") as file:  # noqa: PTH123 - a hot path
                return file.read()
        return bytes(self._get(None).bytes())

    def _pay(self, start: int = 0, length: int = 1 << 62) -> None:
        """Charge a local read, if the lab declares that some folders lie in other regions."""
        if regions.has_far_folders():
            size = os.stat(self.key).st_size  # noqa: PTH116 - a missing file is for the caller to translate
            budget.charge(self, min(length, size - start))

    def _get(self, options: dict[str, Any] | None) -> Any:
        """An answer whose head has come and whose bytes have not: these are charged first."""
        answer = self._client.get(self.key, options=options)
        if self.scheme != "memory":
            budget.charge(self, answer.range[1] - answer.range[0])
        return answer

    def children(self) -> "Children":
        """What list() gives; of each file what the store knows, for a folder None."""
        if self.is_local:
            return [(path, None if path.is_dir() else path.stat()) for path in self.list()]
        with self._failures("listed"):
            found = self._client.list_with_delimiter(self.key or None)
        folders = dict.fromkeys(found["common_prefixes"])
        markers = {self.key, *folders}
        files = {
            entry["path"]: _stat(entry)
            for entry in found["objects"]
            if entry["size"] or entry["path"] not in markers
        }
        return [(self._at(key), stat) for key, stat in (files | folders).items()]

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Generator[None]:
        try:
            yield
        except PreconditionError as error:
            raise Refused(
                f"{self} was replaced while it was being {verb}. Begin again at its start."
            ) from error
        except (BaseError, OSError, ValueError) as error:
            raise stores.translate(error, str(self), verb) from error


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


def _stat(entry: Any) -> Stat:
    return Stat(entry["size"], entry["last_modified"].timestamp(), entry["e_tag"] or "")


def _discard(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
