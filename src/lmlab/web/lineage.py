"""The lineage page: a neighbourhood as a drawing, and a panel about the node that was clicked."""

import asyncio

from starlette.requests import Request

from lmlab.artifacts.identity import split_address
from lmlab.web.artifacts import Facts, address_of, number
from lmlab.web.client import Service, ServiceError
from lmlab.web.layout import NODE_HEIGHT, NODE_WIDTH, Edge, draw, neighbourhood

MOST_NODES, MOST_HOPS = 120, 50
SAMPLE_ROWS, MOST_FOLDERS = 3, 12


async def graph(service: Service, request: Request) -> Facts:
    """Nodes within `up` and `down` hops, with how many more lie behind each; `show` opens the panel."""
    focus, show = address_of(request), request.query_params.get("show")
    up, down = (number(request, name, 1, MOST_HOPS) for name in ("up", "down"))
    found, panel = await asyncio.gather(
        service.get(f"/lineage/{focus}", up=up + 1, down=down + 1), _panel(service, show)
    )
    kinds = {(edge["source"], edge["target"]): edge["kind"] for edge in found["edges"]}
    nodes = {node["address"]: node for node in found["nodes"]}
    near = list(neighbourhood(focus, list(kinds), up, down))
    shown = near[:MOST_NODES]
    inside = [edge for edge in kinds if edge[0] in shown and edge[1] in shown]
    drawing = draw(shown, inside)
    places = [
        nodes[address] | _place(address, drawing.places[address], list(kinds), shown) for address in shown
    ]
    edges = [(*edge, kinds[edge], path) for edge, path in zip(inside, drawing.paths, strict=True)]
    facts = {"focus": focus, "up": up, "down": down, "show": show, "panel": panel}
    facts |= {"drawing": drawing, "size": (NODE_WIDTH, NODE_HEIGHT)}
    return {
        **facts,
        "nodes": places,
        "edges": edges,
        "left_out": len(near) - len(shown),
        "lineage": [nodes[address] for address in near],
    }


def _place(address: str, place: tuple[float, float], edges: list[Edge], shown: list[str]) -> Facts:
    """Where a node stands, and how many of its neighbours are not drawn, on either side."""
    hidden_up = sum(target == address and source not in shown for source, target in edges)
    hidden_down = sum(source == address and target not in shown for source, target in edges)
    return {"x": place[0], "y": place[1], "hidden_up": hidden_up, "hidden_down": hidden_down}


async def _panel(service: Service, address: str | None) -> Facts | None:
    """What the panel says of one artifact: state, recipe, a few rows of its first readable file."""
    if not address:
        return None
    split_address(address)
    try:
        facts = await service.get(f"/artifact/{address}")
    except ServiceError as error:
        if error.status_code != 404:
            raise
        return {"address": address, "state": "missing", "record": None, "error": error.message}
    return {**facts, "sample": await _sample(service, address) if facts["record"] else None}


async def _sample(service: Service, address: str) -> Facts | None:
    """The first rows of its first table, largest folders first; without one, of its first readable file."""
    readable, folders = None, [""]
    for _ in range(MOST_FOLDERS):
        if not folders:
            break
        folder = folders.pop(0)
        found = await service.get(f"/files/{address}", path=folder)
        tables = [file["name"] for file in found["files"] if file["kind"] == "table"]
        others = [file["name"] for file in found["files"] if file["kind"] != "binary"]
        readable = readable or (folder + others[0] if others else None)
        if tables:
            readable = folder + tables[0]
            break
        folders += [
            f"{folder}{one['name']}/" for one in sorted(found["folders"], key=lambda one: -one["bytes"])
        ]
    return await service.get(f"/preview/{address}", path=readable, count=SAMPLE_ROWS) if readable else None
