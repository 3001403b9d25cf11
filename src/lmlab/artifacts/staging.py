"""Steps whose libraries need real files, on a root that is an object store: `@step(local_files=True)`.

Their inputs are copied to this machine once and proved; they write into a folder here, and what they wrote is
sent when they have ended (and every minute, if they resume). The record still comes last, so nothing is
visible before all of it is there.
"""

import contextlib
import fcntl
import secrets
import shutil
import signal
import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from lmlab.artifacts import mirror, records
from lmlab.artifacts.calls import Out
from lmlab.artifacts.handles import A, Part, moved, root_of
from lmlab.artifacts.identity import replace_handles
from lmlab.core import environ
from lmlab.core.errors import ArtifactError, StorageError
from lmlab.storage import Path, copy, parts, regions
from lmlab.storage.paths import Stat
from lmlab.storage.scratch import scratch

_KEPT_DAYS, _SEND_EVERY_S = 30, 60.0


@contextlib.contextmanager
def staged(out: Out, *, resumes: bool) -> Generator[Out]:
    """The same output as a folder of this machine, which is sent to the root when the block ends well.

    A step that resumes finds what an earlier attempt had sent, and sends what it has when it is stopped.
    """
    with _folder() as folder:
        stage = _Stage(folder, out.path)
        try:
            if resumes:
                stage.take()
            with stage.sending() if resumes else contextlib.nullcontext():
                yield replace(out, path=folder, _attempt=replace(out._attempt, root=out.root))
            stage.send(is_whole=out.ranks == 1)
        except BaseException as error:
            # SIGTERM comes when the claim is lost: the folder may be somebody else's by now.
            if resumes and error.args != (signal.SIGTERM,):
                with contextlib.suppress(StorageError):
                    stage.send()
            raise


def brought(arguments: dict[str, Any]) -> dict[str, Any]:
    """A step's arguments with every artifact of a remote root replaced by a copy on this machine."""
    return replace_handles(arguments, bring)


def bring(artifact: A) -> A:
    """A built artifact as a copy on this machine, made once for all its processes, every file proved.

    Adopted data are read where they lie: they may be terabytes.
    """
    if isinstance(artifact, Part):
        return bring(artifact.whole)[artifact.part]  # type: ignore[return-value]  # a Part again
    folder, name = artifact.path, f"{artifact.name}/{artifact.version}"
    if folder.is_local or not str(folder).endswith(f"/{name}"):
        return artifact
    record = records.load(folder)
    if record is None:
        raise ArtifactError(
            f"{artifact.address} has disappeared from {folder} since it was built. Run again."
        )
    found = mirror.Found(root_of(folder, artifact.name), regions.region_of(folder), name, record)
    here = scratch(_KEPT_DAYS, Path(environ.cache_dir()), "artifacts") / record.epoch / name
    with parts.locked(here.local):
        if not mirror.is_whole(here, record):
            mirror.copy_artifact(found, here, lost=threading.Event())
            records.commit(here, record)
    return moved(artifact, here)


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    """A folder for one step; those that killed processes left are removed on the way."""
    home = environ.cache_dir() / "staged"
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob("*.lock"):
        with left.open() as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
            left.unlink()
    folder = home / secrets.token_hex(8)
    with parts.locked(folder):
        try:
            yield Path(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)


class _Stage:
    """A local folder, and which of its files the root already has in which state."""

    def __init__(self, folder: Path, remote: Path) -> None:
        self.folder, self._remote = folder, remote
        self._sent: dict[str, Stat] = {}
        self._lock = threading.Lock()

    def take(self) -> None:
        """Fetch what an earlier attempt had sent."""
        names = [name for name in copy.listing(self._remote) if not name.startswith(".")]
        copy.run_all(lambda name: copy.copy_file(self._remote / name, self.folder / name), names)
        self._sent = copy.listing(self.folder)

    def send(self, *, is_whole: bool = False) -> None:
        """Send what is new or changed, files that commit others last; if it is whole, remove what is gone."""
        with self._lock:
            found = copy.listing(self.folder)
            changed = [name for name, stat in found.items() if self._sent.get(name) != stat]
            copy.commits_last(lambda name: (self.folder / name).copy_to(self._remote / name), changed)
            for name in self._sent.keys() - found.keys() if is_whole else ():
                (self._remote / name).remove()
            self._sent |= found

    @contextlib.contextmanager
    def sending(self) -> Generator[None]:
        """Send every minute while the block runs, so that another machine can go on from there."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(_SEND_EVERY_S):
                # What could not be sent now is sent with the next round; a failure at the end counts.
                with contextlib.suppress(StorageError):
                    self.send()

        thread = threading.Thread(target=run, name="sending", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
