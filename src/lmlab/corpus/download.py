"""Fetching pinned archives with the user's own pip, npm and apt, into a cache kept by sha256.

An archive in the cache costs no network. What arrives is checked before it is put there, so a wrong or
half-written file is never found by a later run.
"""

import hashlib
import importlib.util
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from lmlab.core import environ
from lmlab.core.errors import HostError, InputError
from lmlab.core.process import guarded, kill_group, start
from lmlab.corpus.registry import SOURCE_NAMES, AnySource, Source
from lmlab.storage.parts import run_all

CONNECT_TIMEOUT_S = 30
TOTAL_TIMEOUT_S = 300
AT_ONCE = 4


def download(sources: Sequence[Source], progress: Callable[[str, int, int], None]) -> list[Path]:
    """Files in the cache, one for each source and in that order, fetched at most four at a time.

    Raises InputError for an archive that is not the pinned one, HostError where it can't be had.
    """
    done = itertools.count(1)

    def one(source: Source) -> Path:
        path = _obtain(source, sources)
        progress(source.package, next(done), len(sources))
        return path

    return run_all(one, sources, AT_ONCE)


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(sha256: str, file: str) -> Path:
    """Where the archive of this digest lies in the cache, if it does."""
    return environ.cache_dir() / "archives" / sha256 / file


def _obtain(source: Source, wanted: Sequence[Source]) -> Path:
    assert source.sha256 is not None
    target = cached(source.sha256, source.file)
    if target.exists() and sha256_of(target) == source.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        _call(source, _command(source, Path(folder), wanted), Path(folder), wanted)
        arrived = [path for path in Path(folder).iterdir() if path.is_file()]
        if len(arrived) != 1:
            raise InputError(
                f"{source.package}=={source.version}: {source.registry} delivered {len(arrived)} files, "
                f"not {source.file}. Look at the client's configuration."
            )
        got = sha256_of(arrived[0])
        if got != source.sha256:
            raise InputError(
                f"{arrived[0].name} of {source.package}=={source.version} has sha256 {got}, expected "
                f"{source.sha256}: it is not the file that this recipe was written for. Check the index that "
                "served it, or pin the new file."
            )
        arrived[0].rename(target)
    return target


def _command(source: Source, folder: Path, wanted: Sequence[Source]) -> list[str]:
    form = "--no-binary" if source.file.endswith(".tar.gz") else "--only-binary"
    timeout, version = CONNECT_TIMEOUT_S, source.version
    # npm waits up to a minute between tries by default, which is long for a machine without network.
    commands = {
        "debian": f"apt-get download -q -oAcquire::http::Timeout={timeout} -oAcquire::Retries=2",
        "npm": f"npm pack --loglevel=error --no-update-notifier --fetch-timeout={timeout}000 "
        "--fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=4000",
        "pypi": f"pip download -q --no-deps {form}={source.package} --timeout={timeout} --retries=2 "
        "--disable-pip-version-check --no-input",
    }
    program, *options = commands[source.registry].split()
    if program == "pip":
        found = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else []
        options.append(f"--dest={folder}")
    else:
        found = [path] if (path := shutil.which(program)) else []
    if not found:
        raise HostError(
            f"{program} is not installed, and {source.package} comes from {source.registry}. "
            f"{other_choices(wanted)}"
        )
    sign = {"debian": "=", "npm": "@", "pypi": "=="}[source.registry]
    return [*found, *options, f"{source.package}{sign}{version}"]


def _call(source: Source, command: list[str], folder: Path, wanted: Sequence[Source]) -> None:
    client = start(guarded(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)
    try:
        output, _ = client.communicate(timeout=TOTAL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        output = f"nothing in {TOTAL_TIMEOUT_S} s".encode()
    finally:
        kill_group(client, grace_s=0)
    if client.returncode != 0:
        lines = output.decode(errors="replace").strip().splitlines() or ["nothing"]
        errors = [line for line in lines if line.lower().startswith(("error", "npm err", "e:"))]
        said = (errors or lines[-1:])[0].strip()[:200]
        raise HostError(
            f"{source.package}=={source.version} can't be had from {source.registry} (no network? it said: "
            f"{said}), and it is not in the cache. {other_choices(wanted)}"
        )


def other_choices(wanted: Sequence[AnySource]) -> str:
    """What to do instead: the quick start's other two sources, or apt's lists anew.

    >>> from lmlab.corpus.registry import quickstart_sources
    >>> other_choices(quickstart_sources("pypi"))
    'Connect and try again, or choose another source: pypi+npm or stdlib (which is offline).'
    """
    registries = {source.registry for source in wanted if isinstance(source, Source)}
    if "debian" in registries:
        return "Connect and run apt-get update, or pin the version that apt-cache policy shows."
    own = "pypi+npm" if "npm" in registries else "pypi" if "pypi" in registries else "stdlib"
    others = [name + " (which is offline)" * (name == "stdlib") for name in SOURCE_NAMES if name != own]
    return f"Connect and try again, or choose another source: {' or '.join(others)}."
