"""Many calls of one step: the cells of a grid, each an artifact with its own record.

There is no sweep object. Choosing among the cells is ordinary code over loaded results, inside a step.
Several runners of one file share the cells among them: `lmlab run EXP.py --race`.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from lmlab.artifacts.handles import Artifact
from lmlab.core.errors import ConfigError

T = TypeVar("T")


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes' values, the last axis changing fastest.

    >>> grid(width=(64, 128), lr=(0.1, 0.2))[:3]
    [{'width': 64, 'lr': 0.1}, {'width': 64, 'lr': 0.2}, {'width': 128, 'lr': 0.1}]
    """
    values = {name: list(axis) for name, axis in axes.items()}
    empty = [name for name, axis in values.items() if not axis]
    if empty or not values:
        what = f"The axis {empty[0]} has no values" if empty else "A grid without axes has no cells"
        raise ConfigError(f"{what}, so there would be nothing to run. Give at least one value.")
    return [dict(zip(values, cell, strict=True)) for cell in itertools.product(*values.values())]


def sweep(function: Callable[..., T], **axes: Iterable[Any]) -> list[T]:
    """What `function` makes of every cell of `grid(**axes)`, in its order. The name must tell cells apart.

    A step picks the winner, and what it read is in its record:

        @step(inline=True)
        def best(out: Out, runs: list[Trained]) -> Best:
            won = min(runs, key=lambda run: run.loss)
            return Best(won.address, won.loss)

        runs = sweep(lambda lr, width: train(f"runs/lr{lr}-w{width}", …), lr=(0.01, 0.02), width=(64, 128))
        winner = best("runs/best", runs)

    >>> sweep(lambda lr, width: f"runs/lr{lr}-w{width}", lr=(0.1,), width=(64, 128))
    ['runs/lr0.1-w64', 'runs/lr0.1-w128']
    """
    cells = grid(**axes)
    made = [function(**cell) for cell in cells]
    named: dict[str, dict[str, Any]] = {}
    for handle, cell in zip(made, cells, strict=True):
        if isinstance(handle, Artifact) and named.setdefault(handle.name, cell) is not cell:
            raise ConfigError(
                f"The cells {named[handle.name]} and {cell} of the sweep are both called {handle.name}, so "
                "one would hide the other. Put every axis into the name."
            )
    return made
