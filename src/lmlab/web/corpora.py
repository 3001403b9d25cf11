"""Pages about text: the sources of all corpora, and one corpus by its stages, domains and samples."""

import asyncio

from starlette.requests import Request

from lmlab.web.artifacts import Facts, address_of, number
from lmlab.web.client import Service, later

SAMPLES = 4


async def leaderboard(service: Service, request: Request) -> Facts:
    """Every source of every corpus, sorted by a column."""
    found = await service.get("/corpora")
    sort = request.query_params.get("sort") or "-bytes"
    rows = [row for row in found["rows"] if sort.removeprefix("-") in row]
    rows.sort(key=lambda row: row[sort.removeprefix("-")] or 0, reverse=sort.startswith("-"))
    return {**found, "corpora": rows or found["rows"], "sort": sort}


async def one(service: Service, request: Request) -> Facts:
    """One corpus: what each stage dropped and why, and documents on both sides of the fence."""
    address, seed = address_of(request), number(request, "seed", 0, 2**31)
    asked = {name: request.query_params.get(name) for name in ("stage", "reason", "domain")}
    common = {"domain": asked["domain"], "seed": seed, "count": SAMPLES}
    path = f"/corpus/{address}/samples"
    sides = service.get(path, kept=0, **{**common, **asked}), service.get(path, kept=1, **common)
    samples = later(asyncio.gather(*sides))
    corpus = await service.get(f"/corpus/{address}")
    stages = [stage | {"lost": stage["documents_in"] - stage["documents_out"]} for stage in corpus["stages"]]
    reasons = [
        {"stage": stage["stage"], "reason": reason, "documents": count}
        for stage in stages
        for reason, count in sorted(stage["dropped"].items(), key=lambda item: -item[1])
    ]
    widest = max((stage["documents_in"] for stage in stages), default=0) or 1
    facts = {"address": address, "stages": stages, "reasons": reasons, "widest": widest, "seed": seed}
    return {**corpus, **facts, "asked": asked, "samples": samples}
