"""Steps, artifacts, records, claims and the runner: an experiment is a graph of named, versioned results."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.artifacts.calls import (
        Out as Out,
        RunOnly as RunOnly,
        adopt as adopt,
        built as built,
        step as step,
    )
    from lmlab.artifacts.handles import Artifact as Artifact, Part as Part
    from lmlab.artifacts.sweeps import grid as grid, sweep as sweep

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Artifact": ".handles",
        "Out": ".calls",
        "Part": ".handles",
        "RunOnly": ".calls",
        "adopt": ".calls",
        "built": ".calls",
        "grid": ".sweeps",
        "step": ".calls",
        "sweep": ".sweeps",
    },
)
