"""The obstore client behind each kind of place, and its errors as ours: one line, the path, the way out.

Only `put` with mode "create" (put-if-absent) is asked of a store beyond plain reading and writing.
"""

import errno
import functools
import re

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import LocalStore, MemoryStore

from lmlab.core.errors import ConfigError, LmlabError, StorageError

Store = LocalStore | MemoryStore

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST}


@functools.cache
def open_store(scheme: str, bucket: str) -> Store:
    """The client of `scheme://bucket`, one a process. The local store's keys are absolute paths."""
    if scheme == "file":
        return LocalStore("/")
    if scheme == "memory":
        return MemoryStore()
    raise ConfigError(
        f"{scheme}://{bucket} is a kind of store lmlab does not know. Use a folder (file://…) or memory://…."
    )


def put(store: Store, key: str, data: bytes, *, create: bool, place: str) -> bool:
    """Write one object whole; False if `create` was asked and it already exists."""
    try:
        obstore.put(store, key, data, mode="create" if create else "overwrite")
    except AlreadyExistsError:
        return False
    except (BaseError, OSError, ValueError) as error:
        raise translate(error, place, "written") from error
    return True


def translate(error: Exception, place: str, verb: str) -> LmlabError:
    """The StorageError for what the system or obstore reported while `place` was being read or written."""
    number = _errno(error)
    if number in _FULL:
        return StorageError(
            f"{place} could not be {verb}: the disk is full. Free some space, or choose another --root."
        )
    if number in _FORBIDDEN or isinstance(error, PermissionDeniedError | PermissionError):
        return StorageError(
            f"{place} may not be {verb} by this user. Change its permissions, or choose another --root."
        )
    if number == errno.EROFS:
        return StorageError(f"{place} can't be {verb}: the disk is read-only. Choose another --root.")
    if number in _NOT_A_FOLDER:
        return StorageError(
            f"{place} can't be {verb}: a part of that path is a file, not a folder. "
            "Move the file, or choose another --root."
        )
    if number == errno.ENOENT or isinstance(error, FileNotFoundError):
        return StorageError(f"{place} does not exist, so it can't be {verb}. Check the path.")
    reason = str(error).split("\n", 1)[0]
    return StorageError(f"{place} could not be {verb}: {reason}.")


def _errno(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # obstore reports the number only in its text.
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None
