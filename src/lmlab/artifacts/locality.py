"""Whether a run would work across regions, asked before anything is submitted.

This machine's region is compared with those of the root and of everything that a step to be run reads by its
address: adopted sources, data given by `--override`, paths in arguments. What is not run is not compared.
"""

import os
from collections.abc import Iterator

from lmlab.artifacts.identity import find
from lmlab.artifacts.plan import Plan, State
from lmlab.core.errors import ConfigError
from lmlab.storage import Path, budget, regions


def check(plan: Plan, root: Path, *, allowed: bool) -> None:
    """Raise ConfigError naming both regions of the first place that is far away; note it if `allowed`."""
    own = regions.own_region()
    if own is None:
        return
    far = {str(place): what for place, what in _read_by(plan, root) if _is_far(own, str(place))}
    for place, what in far.items():
        region = regions.region_of(place) or ""
        if not allowed:
            raise ConfigError(
                f"{what} {place} lies in {region}, but this machine is in {own}: every byte would cross. Run "
                "there, choose a place here, or pay for it with --allow-cross-region."
            )
        budget.note(f"--allow-cross-region: {place}", region, own)


def _is_far(own: str, place: str) -> bool:
    region = regions.region_of(place)
    return region is not None and not regions.same_region(region, own)


def _read_by(plan: Plan, root: Path) -> Iterator[tuple[object, str]]:
    yield root, "The root"
    for item in plan.to_build:
        if item.state is not State.BUILD:
            continue
        call = item.node.call
        for place in (*find(call.arguments, _is_place), *([call.source] if call.source else [])):
            yield place, f"{item.node.address} reads what"
        for address in item.node.inputs:
            used = plan.items[address].record
            if used is not None and used.source is not None:
                yield used.source, f"{item.node.address} reads {address}, which"


def _is_place(value: object) -> bool:
    return isinstance(value, str | os.PathLike | Path)
