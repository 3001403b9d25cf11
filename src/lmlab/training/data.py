"""The text of a run: its stores opened and checked before anything is compiled, and what it has read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath

import numpy as np
from numpy.typing import NDArray

from lmlab.artifacts import Artifact
from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.store import Store, open_store
from lmlab.training import identity
from lmlab.training.checkpoint import complete_steps
from lmlab.training.recipe import Run
from lmlab.training.stream import HeldOut, Stream, held_out, sources_of


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a run reads."""

    stream: Stream
    """Batches by step."""
    held_out: list[HeldOut]
    """Fixed pieces of held-out text, one per domain; empty without validation."""


def open_inputs(run: Run) -> Inputs:
    """Open the stores of a run; a store that does not fit the model is an error naming both."""
    addresses = [store.address for store in run.data.stores]
    if len(set(addresses)) < len(addresses):
        raise ConfigError(
            f"mix: {max(addresses, key=addresses.count)} stands in it twice, with two weights. Add them up."
        )
    stores = {store.address: open_store(store.path) for store in run.data.stores}
    for address, store in stores.items():
        _check_vocab(run, address, store)
    weights = {store.address: weight for store, weight in run.data.stores.items()}
    stream = _stream(run, stores, weights)
    if run.validation is None:
        return Inputs(stream, [])
    store = open_store(run.validation.path)
    _check_vocab(run, run.validation.address, store)
    return Inputs(stream, held_out(store, run.seq, run.validation_tokens))


def seen_tokens(run: PathLike[str], trained_on: Iterable[Artifact]) -> Iterator[NDArray[np.int32]]:
    """Each sequence of `seq` tokens that the run in this folder was trained on, in order.

    Computed from the recipe and its token stores, up to the newest checkpoint; nothing was recorded for it.
    Raises InputError naming a store of the recipe that is not among `trained_on`.
    """
    folder = Path(fspath(run))
    recipe = identity.recipe_of(folder)
    given = {store.address: store.path for store in trained_on}
    missing = [address for address in map(str, recipe.data.stores) if address not in given]
    if missing:
        raise InputError(
            f"{folder} was trained on {missing[0]}, which is not given "
            f"(given: {', '.join(given) or 'none'}), so what it saw can't be told. "
            "Name the token stores of its recipe."
        )
    stores = {address: open_store(given[str(address)]) for address in recipe.data.stores}
    stream = _stream(recipe, stores, recipe.data.stores)
    for step in range(max(complete_steps(folder.local / "checkpoints"), default=0)):
        yield from stream.batch(step).tokens


def _stream(run: Run, stores: Mapping[str, Store], weights: Mapping[str, float]) -> Stream:
    sources = sources_of(stores, weights, run.data.alpha)
    return Stream(sources, batch=run.batch, seq=run.seq, block=run.data.block, seed=run.seed)


def _check_vocab(run: Run, address: str, store: Store) -> None:
    if store.vocab > run.model.vocab:
        raise ConfigError(
            f"model.vocab={run.model.vocab}, but the token store {address} has {store.vocab} ids, so some "
            f"would have no embedding. Set vocab={store.vocab}."
        )
