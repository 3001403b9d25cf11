"""What a run is: its recipe, kept beside it and compared at every resume.

A run is its folder. `recipe.json` holds the encoded `Run` with each artifact as its address. Code edits and
new fields with defaults never matter; a change of anything that decides the losses is refused, naming the
field.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from lmlab.core.config import Json, decode, diff, encode
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.storage import Path, read_json, write_json
from lmlab.training.recipe import CADENCE, Run


def encoded(run: Run) -> dict[str, Any]:
    """The recipe as JSON; artifacts stand in it as `name@version`."""
    stores = {store.address: weight for store, weight in run.data.stores.items()}
    validation = run.validation.address if run.validation is not None else None
    recipe = encode(replace(run, data=replace(run.data, stores=stores), validation=validation))
    assert isinstance(recipe, dict)
    return recipe


def keep(run: Run, folder: Path) -> None:
    """Write the recipe into the run's folder, or hold it against the one that is there.

    Raises ConfigError naming the first field that would change the losses.
    """
    new, file = encoded(run), folder / "recipe.json"
    if file.exists():
        _refuse_change(read(folder), new, folder)
    write_json(file, new)


def read(folder: Path) -> dict[str, Any]:
    """The encoded recipe of the run in `folder`."""
    file = folder / "recipe.json"
    if not file.exists():
        raise ArtifactError(
            f"{folder} has no recipe.json, so it is no training run. Give the folder of a run."
        )
    recipe = read_json(file)
    assert isinstance(recipe, dict)
    return recipe


def recipe_of(folder: Path) -> Run:
    """The recipe of the run in `folder`; its stores are addresses, not artifacts."""
    return decode(Run, read(folder), "recipe")


def _refuse_change(old: Json, new: Json, folder: Path) -> None:
    # Through the classes of today, so that a field that did not exist then has its default. Where a field is
    # gone since, this fails, and the plain comparison names it.
    with suppress(ConfigError):
        old = encode(decode(Run, old, "recipe"))
    changes = [change for change in diff(old, new) if change.path not in CADENCE]
    if changes:
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise ConfigError(
            f"{folder} holds a run of another recipe ({changes[0]}{more}), so going on would mix two runs. "
            "Give back the old value, or train under another name or version."
        )
