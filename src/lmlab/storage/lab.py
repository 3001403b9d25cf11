"""What `lmlab.toml` declares: the root, the regional roots, how stores are reached, the limits of requests.

The file is the one in LMLAB_CONFIG, else the nearest upwards. A backend is taken whole by its most exact key:
tables are never merged, so that an entry for one bucket loses no setting by accident (and inherits none).
"""

import functools
import os
import pathlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lmlab.core import environ
from lmlab.core.config import decode
from lmlab.core.errors import ConfigError
from lmlab.storage import secrets

FILE = "lmlab.toml"
_REFERENCES = ("access_key", "secret_key", "session_token", "service_account", "token")


@dataclass(frozen=True)
class Backend:
    """How one kind of store, or one bucket, is reached. Credentials are references, never values."""

    endpoint: str | None = None
    """Address of the service; None = the cloud's own."""
    region: str | None = None
    """Region that requests are signed for (S3)."""
    addressing: Literal["path", "virtual"] = "path"
    """Whether the bucket stands in the path or in the host's name (S3)."""
    anonymous: bool = False
    """Send no credentials: public data."""
    allow_http: bool = False
    """Accept an endpoint without TLS, such as an emulator on this machine."""
    location: str | None = None
    """Region where its data lie, for the transfer budget."""
    access_key: tuple[str, ...] = ()
    """References to the id of an S3 key; the first that is present counts."""
    secret_key: tuple[str, ...] = ()
    """References to the S3 key itself."""
    session_token: tuple[str, ...] = ()
    """References to the token of a temporary S3 key."""
    service_account: tuple[str, ...] = ()
    """References to a service account's JSON key (gs)."""
    token: tuple[str, ...] = ()
    """References to a bearer token (hf, https, gs)."""

    @property
    def is_pinned(self) -> bool:
        """Whether credentials are declared, so that no environment variable may add to them."""
        return self.anonymous or any(getattr(self, name) for name in _REFERENCES)


@dataclass(frozen=True)
class Limits:
    """How long a request to any store may take, and how often it is tried."""

    connect_s: float = 30.0
    """To reach the server."""
    read_s: float = 120.0
    """Without one more byte from it."""
    total_s: float = 600.0
    """For the whole request, its tries included."""
    tries: int = 5
    """Including the first."""
    connections: int = 128
    """Kept open to one host."""

    @property
    def silence_s(self) -> float:
        """How long a server may say nothing: read_s, or less, so that a second try fits into total_s."""
        return min(self.read_s, self.total_s / 2)

    def __post_init__(self) -> None:
        for name in ("connect_s", "read_s", "total_s", "tries", "connections"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"limits.{name} is {getattr(self, name)}, and a request without limits hangs for ever. "
                    "Give a positive number."
                )


@dataclass(frozen=True)
class Lab:
    """One lmlab.toml, checked."""

    file: pathlib.Path | None = None
    """Where it stands; None = there is none, and all is default."""
    root: str | None = None
    """The own root: an address, or an absolute path."""
    region: str | None = None
    """Region of this machine; "auto" = ask the cloud's metadata server."""
    roots: dict[str, str] = field(default_factory=dict)
    """Regional roots by region, in the order in which they are searched."""
    backends: dict[str, Backend] = field(default_factory=dict)
    """By `scheme://` or `scheme://bucket`."""
    limits: Limits = Limits()
    """Of every request."""

    def backend(self, scheme: str, bucket: str) -> Backend | None:
        """The most exact entry for `scheme://bucket`, whole."""
        return self.backends.get(f"{scheme}://{bucket}") or self.backends.get(f"{scheme}://")


def lab(start: pathlib.Path | None = None) -> Lab:
    """The lab of LMLAB_CONFIG, else of the nearest lmlab.toml from `start` (the working folder) upwards."""
    chosen = environ.get("LMLAB_CONFIG")
    if chosen:
        places = [pathlib.Path(chosen).absolute()]
    else:
        folder = start or pathlib.Path(working_folder())
        places = [place / FILE for place in (folder, *folder.parents)]
    for place in places:
        try:
            return _load(place, place.stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(
                f"{place} can't be read ({error.strerror}). Correct its permissions."
            ) from error
    if chosen:
        raise ConfigError(f"LMLAB_CONFIG is {chosen}, and no such file is there. Correct or unset it.")
    return Lab()


def working_folder() -> str:
    """Where this process works. Raises ConfigError: a missing file is taken for a missing artifact."""
    try:
        return os.getcwd()  # noqa: PTH109 - asked at every read
    except FileNotFoundError:
        raise ConfigError("The folder that this process works in was removed. Start it in another.") from None


@functools.lru_cache(maxsize=64)
def _load(file: pathlib.Path, _modified: int) -> Lab:
    try:
        table = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}. Correct it.") from error
    for key in ("root", "region"):
        if key in table and (not isinstance(table[key], str) or not table[key]):
            raise ConfigError(f"{key}={table[key]!r} in {file} must be a path or an address in quotes.")
    for key, entry in _entries(table, "backends", file).items():
        _check_backend(key, entry, f"{file}: backends.{key!r}")
    try:
        found: Lab = decode(Lab, {**table, "file": str(file)}, "lab")
    except ConfigError as error:
        raise ConfigError(f"{file}: {str(error).removeprefix('lab.')}") from None
    roots = {region: _absolute(root, file.parent) for region, root in found.roots.items()}
    return replace(found, file=file, root=found.root and _absolute(found.root, file.parent), roots=roots)


def _entries(table: Mapping[str, Any], name: str, file: pathlib.Path) -> dict[str, Any]:
    entries = table.get(name, {})
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(f'{file}: {name} must hold tables, such as [{name}."s3://"]. Correct it.')
    return entries


def _check_backend(key: str, entry: dict[str, Any], where: str) -> None:
    """Refuse literal secrets before anything could print them, and let one reference stand without a list."""
    if "://" not in key:
        raise ConfigError(f"{where} is no address. Write scheme:// or scheme://bucket, such as s3://data.")
    address = str(entry.get("endpoint", "https://x"))
    if not re.match(r"https?://[A-Za-z0-9.\[\]:_-]+(/[!-~]*)?$", address):
        raise ConfigError(f"{where}.endpoint is no address. Write https://host[:port], without any key.")
    if (
        address.startswith("http://")
        and not entry.get("allow_http")
        and not key.startswith(("hf:", "gcp-secret:"))
    ):
        raise ConfigError(
            f"{where}.endpoint sends data and signatures in the clear. Add allow_http = true if meant."
        )
    for name in _REFERENCES:
        if name in entry:
            references = [entry[name]] if isinstance(entry[name], str) else entry[name]
            secrets.check(references, f"{where}.{name}")
            entry[name] = references
    if ("access_key" in entry) != ("secret_key" in entry) or ("session_token" in entry) > (
        "secret_key" in entry
    ):
        raise ConfigError(f"{where}: access_key and secret_key belong together. Give references to both.")


def _absolute(root: str, below: pathlib.Path) -> str:
    # A relative root means the same folder from wherever below the command is run.
    return root if "://" in root else str(below / root)
