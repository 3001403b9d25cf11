"""Where the nodes of a lineage graph stand: layers from inputs to users, few crossings, no overlaps.

The layered method of Sugiyama: longest path gives the layer, barycentres the order in it, and long edges
pass through slots, shared by those of one source. Pure; a cycle (a `dev` input rebuilt from its user) is
drawn, not refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

NODE_WIDTH, NODE_HEIGHT = 212, 46
GAP_X, GAP_Y = 48, 18
SLOT = -4  # of height: with the gap, lines run 14 apart
SWEEPS = 8

Edge = tuple[str, str]
Beside = dict[str, list[str]]


@dataclass(frozen=True)
class Drawing:
    """A graph with places: the top left corner of each node, and an SVG path for each edge, in order."""

    places: dict[str, tuple[float, float]]
    paths: list[str]
    width: float
    height: float


def neighbourhood(focus: str, edges: Sequence[Edge], up: int, down: int) -> dict[str, int]:
    """Nodes within `up` hops against the edges and `down` along them, nearest first, with their distance."""
    found = {focus: 0}
    for hops, beside in ((up, _before(edges)), (down, _after(edges))):
        level = [focus]
        for hop in range(1, hops + 1):
            level = [there for here in level for there in beside.get(here, ()) if there not in found]
            found |= dict.fromkeys(level, hop)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def draw(nodes: Sequence[str], edges: Sequence[Edge]) -> Drawing:
    """Place `nodes` so that no two overlap and edges run from left to right (except along a cycle)."""
    rank = ranks(nodes, edges)
    chains = [_chain(edge, rank) for edge in edges]
    links = list(dict.fromkeys(link for chain in chains for link in pairwise(chain)))
    before, after = _before(links), _after(links)
    heights = {slot: SLOT if slot.startswith("/") else NODE_HEIGHT for slot in rank}
    layers: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for slot, layer in rank.items():
        layers[layer].append(slot)
    sweeps = [(layers, before), (layers[::-1], after)] * (SWEEPS // 2)
    for ordered, beside in sweeps:
        position = {slot: i / len(layer) for layer in layers for i, slot in enumerate(layer)}
        for layer in ordered:
            layer.sort(key=lambda slot: fmean([position[s] for s in beside.get(slot) or [slot]]))
            position.update((slot, i / len(layer)) for i, slot in enumerate(layer))
    middles = {slot: float(i * (NODE_HEIGHT + GAP_Y)) for layer in layers for i, slot in enumerate(layer)}
    for ordered, beside in sweeps:
        for layer in ordered:
            wanted = [fmean([middles[s] for s in beside.get(slot) or [slot]]) for slot in layer]
            middles.update(
                zip(layer, _spaced(wanted, [heights[slot] + GAP_Y for slot in layer]), strict=True)
            )
    least = min((middles[slot] - heights[slot] / 2 for slot in rank), default=0)
    middles = {slot: middle - least for slot, middle in middles.items()}
    lefts = {slot: layer * (NODE_WIDTH + GAP_X) for slot, layer in rank.items()}
    return Drawing(
        {node: (lefts[node], middles[node] - NODE_HEIGHT / 2) for node in nodes},
        [_path([(lefts[slot], middles[slot]) for slot in chain]) for chain in chains],
        len(layers) * (NODE_WIDTH + GAP_X) - GAP_X,
        max((middles[slot] + heights[slot] / 2 for slot in rank), default=0),
    )


def ranks(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The layer of each node: after all that it was made from, and inputs close to their first user."""
    before, after = _before(edges), _after(edges)
    waiting = {node: len(before.get(node, ())) for node in nodes}
    ready = [node for node in nodes if not waiting[node]]
    rank: dict[str, int] = {}
    while len(rank) < len(nodes):
        # With nothing ready there is a cycle: begin with any node of it.
        node = ready.pop() if ready else next(node for node in nodes if node not in rank)
        if node in rank:
            continue
        rank[node] = max((rank[source] + 1 for source in before.get(node, ()) if source in rank), default=0)
        for target in after.get(node, ()):
            waiting[target] -= 1
            ready += [] if waiting[target] else [target]
    for node in nodes:
        if node in after and node not in before:
            rank[node] = max(0, min(rank[target] for target in after[node]) - 1)
    return rank


def _before(edges: Iterable[Edge]) -> Beside:
    return _after((target, source) for source, target in edges)


def _after(edges: Iterable[Edge]) -> Beside:
    found: Beside = {}
    for source, target in edges:
        found.setdefault(source, []).append(target)
    return found


def _chain(edge: Edge, rank: dict[str, int]) -> list[str]:
    """An edge's ends, with its source's slot (ranked here) in each layer that it passes."""
    source, target = edge
    slots = {f"/{layer}/{source}": layer for layer in range(rank[source] + 1, rank[target])}
    rank |= slots
    return [source, *slots, target]


def _spaced(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles as close to `wanted` as their order and their heights allow, on average."""
    placed: list[float] = []
    for index, want in enumerate(wanted):
        room = (heights[index - 1] + heights[index]) / 2
        placed.append(max(want, placed[-1] + room) if placed else want)
    shift = fmean(want - place for want, place in zip(wanted, placed, strict=True))
    return [place + shift for place in placed]


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A smooth line from the source's right side, across the slots, to the target's left side."""
    drawn = f"M{points[0][0] + NODE_WIDTH} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        start, bend = x0 + NODE_WIDTH, (x0 + NODE_WIDTH + x1) / 2
        drawn += f"L{start} {y0:.1f}C{bend:.0f} {y0:.1f} {bend:.0f} {y1:.1f} {x1} {y1:.1f}"
    return drawn
