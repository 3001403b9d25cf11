"""Checkpoints: orbax arrays by path, and a `done.json` written last that says what must be in them.

    checkpoints/00000120/weights/    parameters and the pending router bias
    checkpoints/00000120/optimizer/  moments
    checkpoints/00000120/done.json   position of the run, shape and type of every array, xxh3 of every file

A folder without `done.json` does not count. Files are checked before orbax reads them, because its reader
leaves a closed event loop behind when a chunk is missing; shapes and types after, because it casts silently.
"""

import json
import logging
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import xxhash
from numpy.typing import NDArray

from lmlab.core.config import decode
from lmlab.core.errors import ArtifactError, StorageError
from lmlab.storage import Path as StoragePath
from lmlab.training import identity
from lmlab.training.optim import Params, flatten, unflatten

FORMAT = 1
KEEP = 2
Arrays = dict[str, NDArray[Any]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """Where a run stands. With the recipe this is all the state there is besides the arrays."""

    step: int
    """Steps done."""
    tokens: int = 0
    """Tokens read."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Sequences read of each source."""
    rows: int = 0
    """Rows of metrics written so far; later ones are cut on resume."""
    train_seconds: float = 0.0
    """Seconds spent training, over all attempts."""
    compile_seconds: float = 0.0
    """Seconds spent compiling, over all attempts."""


class Checkpoints:
    """The checkpoints of one run. Writing happens in a thread; its failure surfaces at the next call."""

    def __init__(self, run: PathLike[str]) -> None:
        self._folder = Path(run) / "checkpoints"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, position: Position, weights: Params, optimizer: Params) -> None:
        """Copy the arrays, then write them while training goes on. Waits for the save before."""
        self.wait()
        # A true copy: on CPU numpy would see the very buffers that the next step gives away.
        items = {
            "weights": {path: np.array(x) for path, x in flatten(weights).items()},
            "optimizer": {path: np.array(x) for path, x in flatten(optimizer).items()},
        }
        self._writing = self._pool.submit(self._write, position, items)

    def wait(self) -> None:
        """Return when nothing is being written; raises what went wrong."""
        if self._writing is not None:
            try:
                self._writing.result()
            finally:
                self._writing = None

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def latest(self) -> tuple[Position, Params, Params] | None:
        """The newest readable checkpoint as (position, weights, optimizer); None when there is none at all.

        A broken one is passed over with a warning. When none of several is readable this refuses: starting
        again from scratch must be a person's decision.
        """
        steps = complete_steps(self._folder)
        for step in reversed(steps):
            try:
                return self._read(step)
            except ArtifactError as error:
                log.warning("%s Trying the one before it.", error)
        if steps:
            raise ArtifactError(
                f"none of the {len(steps)} checkpoints in {self._folder} can be read, and training from "
                f"scratch would lose {steps[-1]} steps. Restore them, or remove the folder to begin again."
            )
        return None

    def _read(self, step: int) -> tuple[Position, Params, Params]:
        folder = self._folder / f"{step:08d}"
        done = _read_done(folder)
        weights, optimizer = (_read_item(folder, done, item) for item in ("weights", "optimizer"))
        return decode(Position, done["position"]), unflatten(weights), unflatten(optimizer)

    def _write(self, position: Position, items: dict[str, Arrays]) -> None:
        folder = self._folder / f"{position.step:08d}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for item, arrays in items.items():
                _write_item(folder / item, arrays)
            described = {
                item: {path: _describe(array) for path, array in arrays.items()}
                for item, arrays in items.items()
            }
            files = {name: _digest(folder / name) for name in _files(folder)}
            done = {"format": FORMAT, "position": asdict(position), "arrays": described, "files": files}
            (folder / "done.part").write_text(json.dumps(done, sort_keys=True))
            (folder / "done.part").replace(folder / "done.json")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StorageError(
                f"{folder} could not be written ({error.strerror or error}), so the run can't resume "
                "from here. Free some space and run again: it goes on from the checkpoint before."
            ) from error
        self._prune()

    def _prune(self) -> None:
        steps = complete_steps(self._folder)
        for folder in self._folder.iterdir():
            kept = folder.name.isdigit() and int(folder.name) in steps[-KEEP:]
            if not kept:
                shutil.rmtree(folder, ignore_errors=True)


def complete_steps(folder: Path) -> list[int]:
    """The steps whose checkpoint was finished, ascending."""
    return sorted(int(done.parent.name) for done in folder.glob("*/done.json") if done.parent.name.isdigit())


def load_final(run: PathLike[str]) -> tuple[Any, Params]:
    """(model config, parameters) of a finished run, with the pending router bias applied (spec T7).

    Reads no optimizer state.
    """
    from lmlab.models.grug import apply_pending

    path = Path(run)
    steps = complete_steps(path / "checkpoints")
    if not steps:
        raise ArtifactError(f"{path} has no checkpoint, so there is no model to load. Train it first.")
    folder = path / "checkpoints" / f"{steps[-1]:08d}"
    found = _read_item(folder, _read_done(folder), "weights")
    weights = unflatten({path: jnp.asarray(array) for path, array in found.items()})
    model = identity.recipe_of(StoragePath(path)).model
    if "pending_bias" in weights:
        return model, apply_pending(weights["params"], weights["pending_bias"])
    return model, weights["params"]


def _handler() -> ocp.PyTreeCheckpointHandler:
    # zarr3 takes half the CPU time of the default format for the same bytes.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)


def _write_item(folder: Path, arrays: Arrays) -> None:
    with ocp.Checkpointer(_handler()) as writer:
        writer.save(folder, args=ocp.args.PyTreeSave({_orbax_key(path): x for path, x in arrays.items()}))


def _read_item(folder: Path, done: dict[str, Any], item: str) -> Arrays:
    for name, digest in done["files"].items():
        if name.startswith(f"{item}/") and _digest(folder / name) != digest:
            raise ArtifactError(f"checkpoint {folder} can't be read: {name} is damaged or missing.")
    expected = done["arrays"][item]
    names = {_orbax_key(path): path for path in expected}
    try:
        with ocp.Checkpointer(_handler()) as reader:
            restore = {key: ocp.RestoreArgs(restore_type=np.ndarray) for key in names}
            found = reader.restore(
                folder / item, args=ocp.args.PyTreeRestore(dict.fromkeys(names, 0), restore_args=restore)
            )
    except (OSError, ValueError, KeyError, jax.errors.JaxRuntimeError) as error:
        reason = re.sub(r"\s+", " ", str(error))[:120]
        raise ArtifactError(f"checkpoint {folder} can't be read: {item} is damaged ({reason}).") from error
    arrays = {path: np.asarray(found[key]) for key, path in names.items()}
    for path, array in arrays.items():
        if _describe(array) != expected[path]:
            raise ArtifactError(f"checkpoint {folder} can't be used: {item} {path} is not what was saved.")
    return arrays


def _read_done(folder: Path) -> dict[str, Any]:
    try:
        done = json.loads((folder / "done.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"checkpoint {folder} can't be read: done.json is damaged ({error}).") from error
    if done.get("format") != FORMAT:
        raise ArtifactError(
            f"checkpoint {folder} has format {done.get('format')}, and this lmlab reads {FORMAT}."
        )
    return done


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _digest(file: Path) -> str | None:
    try:
        return xxhash.xxh3_64_hexdigest(file.read_bytes())
    except OSError:
        return None


def _orbax_key(path: str) -> str:
    """Orbax reads dots as nesting in some of its formats; slashes would become folders."""
    return path.replace(".", "__")
