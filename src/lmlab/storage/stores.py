"""The obstore client behind each kind of place, and its errors as ours: one line, the path, the way out.

Every client has the lab's limits: to connect, between two bytes, for the whole request with its tries. Of a
store only `put` with mode "create" (put-if-absent) is asked beyond plain reading and writing.
"""

import errno
import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import GCSStore, LocalStore, MemoryStore, S3Store

from lmlab.core import environ
from lmlab.core.errors import LmlabError, StorageError
from lmlab.storage import lab as labs, secrets

Store = LocalStore | MemoryStore | S3Store | GCSStore

_REREAD = timedelta(minutes=15)
"""After this time references are read again, so that a rotated key is taken up by a long run."""
# obstore asks for a token before it writes even when it is told to sign nothing.
_NOBODY = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST}
SCHEMES = ("file", "memory", "s3", "gs", "hf", "https", "http")


def open_store(scheme: str, bucket: str) -> Store:
    """The client of `scheme://bucket`, one a process. The local store's keys are absolute paths."""
    if scheme in ("file", "memory"):
        return _own(scheme, bucket)
    here = labs.lab()
    return _remote(scheme, bucket, here.backend(scheme, bucket), here.limits)


@functools.cache
def _own(scheme: str, _bucket: str) -> Store:
    return LocalStore("/") if scheme == "file" else MemoryStore()


@functools.lru_cache(maxsize=256)
def _remote(scheme: str, bucket: str, backend: labs.Backend | None, limits: labs.Limits) -> Store:
    given = backend or labs.Backend()
    settings = (_s3_settings if scheme == "s3" else _gs_settings)(bucket, given)
    make: Any = S3Store if scheme == "s3" else GCSStore
    # obstore adds what it finds in the environment to what it is given: AWS_SESSION_TOKEN to a pinned key.
    stray = ("AWS_", "GOOGLE_") if given.is_pinned else ()
    options = _client_options(limits, allow_http=given.allow_http)
    try:
        with environ.without(stray):
            return make(bucket, **settings, client_options=options, retry_config=_retries(limits))
    except BaseError as error:
        failure = translate(error, f"{scheme}://{bucket}", "opened")
    # Raised outside of the handler: obstore's text may quote the key that it could not read.
    raise failure


def _client_options(limits: labs.Limits, *, allow_http: bool) -> dict[str, Any]:
    return {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=min(limits.connect_s, limits.total_s / 2)),
        "read_timeout": timedelta(seconds=min(limits.read_s, limits.total_s / 2)),
        "timeout": timedelta(seconds=limits.total_s),
        "pool_max_idle_per_host": str(limits.connections),
    }


def _retries(limits: labs.Limits) -> dict[str, Any]:
    # A try that began before this moment and then hears nothing ends within total_s.
    last_start = limits.total_s - max(min(limits.read_s, limits.total_s / 2), limits.connect_s)
    return {"max_retries": limits.tries - 1, "retry_timeout": timedelta(seconds=max(last_start, 0))}


def _s3_settings(bucket: str, given: labs.Backend) -> dict[str, Any]:
    settings: dict[str, Any] = {"conditional_put": "etag"}
    if given.region:
        settings["region"] = given.region
    if given.endpoint:
        is_virtual = given.addressing == "virtual"
        host = given.endpoint.replace("://", f"://{bucket}.", 1) if is_virtual else given.endpoint
        settings |= {"endpoint": host, "virtual_hosted_style_request": is_virtual}
    if given.anonymous:
        settings["skip_signature"] = True
    elif given.is_pinned:
        settings["credential_provider"] = _checked(functools.partial(_s3_credentials, bucket, given))
    return settings


def _s3_credentials(bucket: str, given: labs.Backend) -> dict[str, Any]:
    what = f"s3://{bucket}"
    token = (
        secrets.resolve(given.session_token, f"{what}, session_token").reveal()
        if given.session_token
        else None
    )
    return {
        "access_key_id": secrets.resolve(given.access_key, f"{what}, access_key").reveal(),
        "secret_access_key": secrets.resolve(given.secret_key, f"{what}, secret_key").reveal(),
        "token": token,
        "expires_at": datetime.now(UTC) + _REREAD,
    }


def _gs_settings(bucket: str, given: labs.Backend) -> dict[str, Any]:
    settings: dict[str, Any] = {"base_url": given.endpoint} if given.endpoint else {}
    if given.anonymous:
        settings |= {"skip_signature": True, "service_account_key": _NOBODY}
    elif given.service_account:
        key = secrets.resolve(given.service_account, f"gs://{bucket}, service_account")
        settings["service_account_key"] = key.reveal()
    elif given.token:
        settings["credential_provider"] = _checked(functools.partial(_gs_credentials, bucket, given))
    return settings


def _gs_credentials(bucket: str, given: labs.Backend) -> dict[str, Any]:
    token = secrets.resolve(given.token, f"gs://{bucket}, token")
    return {"token": token.reveal(), "expires_at": datetime.now(UTC) + _REREAD}


def _checked(provider: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Called once, so that a missing secret is our error and not one inside of obstore's."""
    provider()
    return provider


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
