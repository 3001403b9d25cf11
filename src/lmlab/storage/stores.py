"""The client behind each kind of place, and its errors as ours: one line, the path, the way out.

Every client has the lab's limits: to connect, between two bytes, for the whole request with its tries. Of a
store only `create` (put-if-absent) is asked beyond plain reading and writing.
"""

import contextlib
import errno
import functools
import itertools
import os
import re
import secrets as random
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path as LocalPath
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore, MemoryStore, S3Store

from lmlab.core import environ
from lmlab.core.errors import ConfigError, LmlabError, Refused, StorageError
from lmlab.storage import lab as labs, secrets

Store = MemoryStore | S3Store | GCSStore

METADATA_HOSTS = {"s3": "169.254.169.254", "gs": "metadata.google.internal"}
SCHEMES = ("file", "memory", "s3", "gs", "hf", "https", "http")
_REREAD = timedelta(minutes=15)
"""After this time references are read again, so that a long run takes up a rotated key."""
_WRITER = "lmlab-writer"
# obstore asks for a token before it writes even when it is told to sign nothing.
_NOBODY = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
_SOURCES = {
    "s3": "AWS_ACCESS_KEY_ID AWS_WEB_IDENTITY_TOKEN_FILE AWS_CONTAINER_CREDENTIALS_RELATIVE_URI "
    "AWS_CONTAINER_CREDENTIALS_FULL_URI AWS_METADATA_ENDPOINT AWS_SKIP_SIGNATURE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS GOOGLE_SERVICE_ACCOUNT GOOGLE_SERVICE_ACCOUNT_PATH "
    "GOOGLE_SERVICE_ACCOUNT_KEY GOOGLE_BEARER_TOKEN GOOGLE_SKIP_SIGNATURE GCE_METADATA_HOST",
}
"""The variables that give obstore credentials."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_CAUSES = {
    "dns error": "its host is unknown",
    "ConnectionRefused": "nothing listens there",
    "TimedOut": "it kept silent too long",
}
_REFUSED = (PermissionDeniedError, UnauthenticatedError)
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST}


def open_store(scheme: str, bucket: str, tries: int | None = None) -> Any:
    """The client of `scheme://bucket`, one a process."""
    if _owner() != os.getpid():
        raise StorageError(
            f"{scheme}://{bucket} is used in a forked process, where clients would hang. Start processes by "
            'spawn or forkserver: multiprocessing.get_context("spawn").'
        )
    if scheme == "memory":
        return _memory(bucket)
    here = labs.lab()
    limits = replace(here.limits, tries=tries) if tries else here.limits
    backend = here.backend(scheme, bucket) or labs.Backend()
    if scheme == "hf":
        backend = replace(backend, endpoint=backend.endpoint or environ.get("HF_ENDPOINT"))
        if not backend.is_pinned and environ.get("HF_TOKEN"):
            backend = replace(backend, token=("env:HF_TOKEN",))
    return _remote(scheme, bucket, backend, limits)


@functools.cache
def _owner() -> int:
    """The process that opened the first store; a fork inherits the answer, but not the clients' threads."""
    return os.getpid()


@functools.cache
def _memory(_bucket: str) -> MemoryStore:
    return MemoryStore()


@functools.lru_cache(maxsize=256)
def _remote(scheme: str, bucket: str, given: labs.Backend, limits: labs.Limits) -> Any:
    if scheme in ("hf", "https", "http"):
        from lmlab.storage.hub import Hub

        return Hub(scheme, bucket, given, limits)
    settings = (_s3_settings if scheme == "s3" else _gs_settings)(bucket, given)
    make: Any = S3Store if scheme == "s3" else GCSStore
    # obstore adds what it finds in the environment to what it is given: AWS_SESSION_TOKEN to a pinned key.
    stray = ("AWS_", "GOOGLE_") if given.is_pinned else ()
    options = _client_options(limits, allow_http=given.allow_http)
    try:
        with environ.without(stray):
            return make(bucket, **settings, client_options=options, retry_config=_retries(limits))
    except (BaseError, OSError, ValueError):
        pass
    # Raised outside of the handler and without obstore's text: it may quote the key that it could not read.
    raise ConfigError(
        f"The client of {scheme}://{bucket} could not be made of its settings (endpoint, region, key). "
        "Correct them in lmlab.toml or the environment."
    )


def _client_options(limits: labs.Limits, *, allow_http: bool) -> dict[str, Any]:
    return {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=min(limits.connect_s, limits.silence_s)),
        "read_timeout": timedelta(seconds=limits.silence_s),
        "timeout": timedelta(seconds=limits.total_s),
        "pool_max_idle_per_host": str(limits.connections),
    }


def _retries(limits: labs.Limits) -> dict[str, Any]:
    # A try that began before this moment and then hears nothing ends within total_s.
    last_start = timedelta(seconds=limits.total_s - limits.silence_s)
    return {"max_retries": limits.tries - 1, "retry_timeout": last_start}


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
    else:
        _need_credentials("s3", bucket)
    return settings


def _s3_credentials(bucket: str, given: labs.Backend) -> dict[str, Any]:
    what, token = f"s3://{bucket}", given.session_token
    return {
        "access_key_id": secrets.resolve(given.access_key, f"{what}, access_key").line(),
        "secret_access_key": secrets.resolve(given.secret_key, f"{what}, secret_key").line(),
        "token": secrets.resolve(token, f"{what}, session_token").line() if token else None,
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
    elif not (LocalPath.home() / ".config/gcloud/application_default_credentials.json").exists():
        _need_credentials("gs", bucket)
    return settings


def _gs_credentials(bucket: str, given: labs.Backend) -> dict[str, Any]:
    token = secrets.resolve(given.token, f"gs://{bucket}, token")
    return {"token": token.line(), "expires_at": datetime.now(UTC) + _REREAD}


def _checked(provider: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Called once, so that a missing secret is our error and not one inside of obstore's."""
    provider()
    return provider


def _need_credentials(scheme: str, bucket: str) -> None:
    """Refuse at once where obstore would ask a metadata server that no machine here has, for minutes."""
    if any(map(environ.get, _SOURCES[scheme].split())):
        return
    try:
        socket.create_connection((METADATA_HOSTS[scheme], 80), timeout=2).close()
    except OSError:
        raise StorageError(_credentials_hint(scheme, bucket)) from None


def _credentials_hint(scheme: str, bucket: str) -> str:
    variables, keys = {
        "s3": ("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "access_key and secret_key"),
        "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "service_account"),
    }[scheme]
    return (
        f"There are no credentials for {scheme}://{bucket}. Set {variables}, or give references as {keys} "
        f'under [backends."{scheme}://"] in lmlab.toml (anonymous = true for public data).'
    )


def put(store: Store, key: str, data: bytes | LocalPath, place: str) -> None:
    """Write one object whole; a file is sent in parts as it is read."""
    size = len(data) if isinstance(data, bytes) else data.stat().st_size
    try:
        # Stores take at most 10,000 parts.
        obstore.put(store, key, data, chunk_size=max(5 << 20, size // 9000))
    except (BaseError, OSError, ValueError) as error:
        raise translate(error, place, "written") from error


def create(scheme: str, bucket: str, key: str, data: bytes, place: str) -> bool:
    """Write one object if it is absent; False if somebody else's is there.

    When the answer to a try is lost, the object is read back: it names its writer, so that a lost answer is
    neither taken for a lost race nor, on the next try, for another's object.
    """
    limits = labs.Limits(tries=1) if scheme == "memory" else labs.lab().limits
    store = open_store(scheme, bucket, tries=1)
    began, writer = time.monotonic(), random.token_hex(8)
    for tried in itertools.count(1):
        try:
            obstore.put(store, key, data, mode="create", attributes={_WRITER: writer})
        except AlreadyExistsError as error:
            # S3's 409 says that another write was under way, not that it came through.
            if tried == 1 and "409 Conflict" not in str(error):
                return False
            failure: Exception = error
        except (BaseError, OSError, ValueError) as error:
            failure = error
        else:
            return True
        found = _writer(store, key)
        if found is not None:
            return found == writer
        # Another try and its reading back must end within total_s.
        is_late = time.monotonic() - began + 2 * limits.silence_s > limits.total_s
        if (
            is_late
            or tried >= limits.tries
            or isinstance(failure, (*_REFUSED, FileNotFoundError, ValueError))
        ):
            raise translate(failure, place, "written") from failure
        time.sleep(0.1 * 2**tried)
    raise AssertionError("the last try returns or raises")


def put_here(path: str, data: bytes, *, create: bool) -> bool:
    """Write a file of this machine's disk whole; False if `create` was asked and it is there already."""
    folder = os.path.dirname(path)  # noqa: PTH120 - a hot path
    draft = f"{folder}/.{random.token_hex(8)}.unfinished"
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a hot path
        with open(draft, "xb") as file:  # noqa: PTH123 - a hot path
            file.write(data)
        if not create:
            os.replace(draft, path)  # noqa: PTH105 - a hot path
            return True
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            return True
        return False
    except (OSError, ValueError) as error:
        raise translate(error, path, "written") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108 - a hot path


def _writer(store: Store, key: str) -> str | None:
    """Who wrote an object that was created; None if none is there, or it can't be asked for."""
    try:
        return obstore.get(store, key, options={"head": True}).attributes.get(_WRITER, "")
    except (BaseError, OSError):
        return None


def translate(error: Exception, place: str, verb: str) -> LmlabError:
    """The StorageError for what the system or obstore reported while `place` was being read or written."""
    number, text = _errno(error), str(error)
    scheme, is_remote, rest = place.partition("://")
    if number in FULL:
        return StorageError(
            f"{place} could not be {verb}: the disk is full. Free some space, or choose another --root."
        )
    if isinstance(error, _REFUSED) and is_remote:
        return Refused(
            f"{place} may not be {verb} with these credentials. Check what [backends] in lmlab.toml, or else "
            "the environment, gives for this store."
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
    bucket = rest.partition("/")[0]
    if "<Code>NoSuchBucket" in text:
        return StorageError(
            f"{place} can't be {verb}: there is no bucket {bucket}. Make it first, or correct it."
        )
    if number == errno.ENOENT or isinstance(error, FileNotFoundError):
        return Refused(f"{place} does not exist, so it can't be {verb}. Check the path.")
    # The start of a URL, not any part of the text: a file may be named credentials.json.
    if re.search(
        r"performing (token request|\w+ http://[^/ ]+/latest/(api|meta-data)/)", text
    ) and scheme in (
        "s3",
        "gs",
    ):
        return StorageError(f"{place} could not be {verb}. {_credentials_hint(scheme, bucket)}")
    if number == errno.EISDIR:
        return StorageError(f"{place} is a folder, so it can't be {verb}. Name a file in it.")
    if "HTTP error" in text:
        cause = next(
            (words for sign, words in _CAUSES.items() if sign in text), "it broke off or kept silent too long"
        )
        tries = re.search(r"after (\d+) retries", text)
        count = f" ({int(tries[1]) + 1} tries)" if tries else ""
        return StorageError(
            f"{place} could not be {verb}: the store didn't answer, {cause}{count}. "
            "Check its endpoint, and [limits] in lmlab.toml."
        )
    noise = r"Generic \w+ error: |Error performing .*? - |: $|:? *<\?xml.*"
    reason = getattr(error, "strerror", None) or re.sub(noise, "", text.split("\n", 1)[0])
    return StorageError(f"{place} could not be {verb}: {reason}.")


def _errno(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # obstore reports the number only in its text.
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None
