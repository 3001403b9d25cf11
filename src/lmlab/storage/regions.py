"""Where places and this machine are: which reads leave a region, and which root of the lab is near.

A region is a cloud's name (`europe-west4`) or a multi-region (`us`, `eu`, `asia`) that covers all with its
prefix. Only what lmlab.toml declares is known: nothing is guessed from the names of buckets.
"""

import functools
import os
import queue
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmlab.core import environ
from lmlab.storage.lab import lab, working_folder

if TYPE_CHECKING:
    from lmlab.storage.paths import Path

METADATA = ("metadata.google.internal", "169.254.169.254")
"""Hosts at which Google's and Amazon's clouds tell a machine where it is."""
LIMIT_S = 2.0
_DECIDES = ("LMLAB_CONFIG", "LMLAB_REGION", "LMLAB_ROOT")
_COVERS = {"us": ("us-",), "eu": ("europe-", "eu-"), "asia": ("asia-",)}


@dataclass(frozen=True)
class Map:
    """What is known of regions, as of one lmlab.toml and environment."""

    own: str | None
    """This machine's region."""
    prefixes: tuple[tuple[str, str], ...]
    """Address and region of each declared place, the longest address first."""

    def region_of(self, address: str) -> str | None:
        """The region of the longest declared prefix of an address."""
        for prefix, region in self.prefixes:
            if f"{address}/".startswith(prefix if prefix.endswith("/") else f"{prefix}/"):
                return region
        return None


def own_region() -> str | None:
    """This machine's region: LMLAB_REGION, else `region` in lmlab.toml, else that of the own root."""
    return current().own


def region_of(place: "str | Path") -> str | None:
    """The region that lmlab.toml declares for a place; None if it declares none."""
    return current().region_of(_plain(str(place)))


def same_region(a: str | None, b: str | None) -> bool:
    """Whether what is read from one into the other stays inside: `us` covers `us-central1`.

    >>> same_region("us", "us-central1"), same_region("eu-west4", "europe-west4"), same_region("us", "eu")
    (True, True, False)
    """
    if a is None or b is None:
        return a is b
    a, b = canonical(a), canonical(b)
    return a == b or a.startswith(_COVERS.get(b, ())) or b.startswith(_COVERS.get(a, ()))


def canonical(region: str) -> str:
    """One spelling of each region: `eu-west4`, as buckets are named, is `europe-west4`."""
    # Amazon's eu-west-1 has a dash before its number and stays.
    return re.sub(r"^eu-([a-z]+\d)", r"europe-\1", region.strip().lower())


def regional_roots() -> "list[Path]":
    """The lab's roots in the order in which they are searched: the own one, then as declared."""
    from lmlab.storage.paths import Path
    from lmlab.storage.roots import choose_root

    return list(dict.fromkeys([choose_root(), *(Path(place) for place in lab().roots.values())]))


def has_far_folders() -> bool:
    """Whether local folders are declared in other regions, as tests do; asked at every local read."""
    return _has_far_folders(*map(environ.get, _DECIDES))


@functools.lru_cache(8)
def _has_far_folders(*_: str | None) -> bool:
    here = current()
    return any("://" not in place and not same_region(there, here.own) for place, there in here.prefixes)


def current() -> Map:
    """What holds for this process now; microseconds, as every read asks."""
    file, region, root = map(environ.get, _DECIDES)
    return _map("" if file else working_folder(), file, region, root)


@functools.lru_cache(8)
def _map(_folder: str, _config: str | None, region: str | None, root: str | None) -> Map:
    file = lab()
    places = {key: backend.location for key, backend in file.backends.items() if backend.location}
    places |= {_plain(place): name for name, place in file.roots.items()}
    known = {place: canonical(region) for place, region in places.items()}
    prefixes = tuple(sorted(known.items(), key=lambda item: -len(item[0])))
    named, own_root = region or file.region, root or file.root
    own = ask_metadata(METADATA, LIMIT_S) if named == "auto" else named and canonical(named)
    if own is None and own_root is not None:
        own = Map(None, prefixes).region_of(_plain(own_root))
    return Map(own, prefixes)


def _plain(address: str) -> str:
    if "://" in address and not address.startswith("file://"):
        return address if address.endswith("://") else address.rstrip("/")
    return os.path.abspath(address.removeprefix("file://"))  # noqa: PTH100 - pathlib keeps `..`


@functools.lru_cache(1)
def ask_metadata(hosts: tuple[str, str], limit_s: float) -> str | None:
    """The region that a cloud's metadata server tells; None off the cloud. Asked once a process."""
    answers: queue.Queue[str | None] = queue.Queue()
    for ask, host in zip((_ask_google, _ask_amazon), hosts, strict=True):
        # Daemons: a server that trickles its answer must not hold up the end of this process.
        threading.Thread(target=lambda a=ask, h=host: answers.put(a(h, limit_s)), daemon=True).start()
    try:
        return answers.get(timeout=limit_s) or answers.get(timeout=limit_s)
    except queue.Empty:
        return None


def _ask_google(host: str, limit_s: float) -> str | None:
    zone = _request(host, "GET", "/computeMetadata/v1/instance/zone", {"Metadata-Flavor": "Google"}, limit_s)
    return canonical(zone.rpartition("/")[2].rpartition("-")[0]) or None


def _ask_amazon(host: str, limit_s: float) -> str | None:
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    proof = {"X-aws-ec2-metadata-token": _request(host, "PUT", "/latest/api/token", lifetime, limit_s)}
    return canonical(_request(host, "GET", "/latest/meta-data/placement/region", proof, limit_s)) or None


def _request(host: str, method: str, path: str, headers: dict[str, str], limit_s: float) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, timeout=limit_s)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.read(1000).decode().strip() if answer.status == 200 else ""
    except (OSError, HTTPException, UnicodeDecodeError):
        return ""
    finally:
        connection.close()
