"""Steps that do nothing, so that only the runner is measured: B1, B2, B3, B5, B7, B8 and B9.

B1: 100 inline steps and one that joins them, in an empty root. B2: the same graph again, all 100 leaves
asked for. B3: importing what an experiment imports. B8: planning 10,000 steps. The peer is Marin's
StepRunner, run by the interpreter named in LMLAB_PEER_MARIN on the same graph in a local folder, at the best
concurrency found (8, 32 and 128 were tried). Seconds are wall-clock, the best of the runs, because the peer
waits more than it computes; CPU seconds stand beside.

B5: B1 on two S3 emulators (they take most of the time), and how many requests one of its steps costs. B7:
reading the index of 2,000 artifacts and walking up and down from one of them; index, refresh: making that of
5,000 anew, and looking at the root when it is there. B9: from kill -9 of an owner on another machine to the
next claim, where claims go stale after 2 s. spawned: a step in a process of its own. None has a peer.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path as LocalPath
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from lmlab.artifacts import Artifact, Out, claims, step
from lmlab.artifacts.catalog import FOLDER, Catalog
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.runner import execute
from lmlab.core import environ
from lmlab.storage import Path

LEAVES, PLANNED, RUNS, PEER_CONCURRENT = 100, 10_000, 5, 32
SPAWNED, STALE_S = 5, 2.0
STORED = (2_000, 5_000)
TESTS = str(LocalPath(__file__).parents[1] / "tests")

# An owner that seems to be on another machine, and beats until it is killed.
OWNER = """
import sys, threading, time
from lmlab.artifacts import claims
from lmlab.storage import Path
claims._scope = lambda: "another machine"
timing = claims.Timing(beat_s=0.2, stale_s=float(sys.argv[2]))
claim = claims.acquire(Path(sys.argv[1]), {}, is_done=lambda: False, timing=timing,
                       stopping=threading.Event(), waiting=None)
claims.Keeper(timing).add(claim)
print("beating", flush=True)
time.sleep(60)
"""

# What the peer's interpreter runs: prints best wall and CPU seconds of B1 and B2, and the value of the join.
PEER = """
import json, os, sys, time
folder, leaves, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ["MARIN_PREFIX"] = folder
from marin.execution.artifact import Artifact
from marin.execution.lazy import ArtifactStep, run

class Number(Artifact):
    value: int = 0

def graph(version):
    def leaf(i):
        work, config = lambda c: Number(value=c["value"]), lambda ctx: {"value": i}
        return ArtifactStep(f"leaf/{i}", version, Number, work, config)
    parts = tuple(leaf(i) for i in range(leaves))
    def joined(ctx):
        return {"parts": [p.name if ctx.is_fingerprint else ctx.resolved(p).value for p in parts]}
    work = lambda c: Number(value=sum(c["parts"]))
    return [*parts, ArtifactStep("join", version, Number, work, joined, deps=parts)]

def cost(version):
    cpu, wall = time.process_time(), time.perf_counter()
    value = run(*graph(version), max_concurrent=CONCURRENT)[-1].value
    return time.perf_counter() - wall, time.process_time() - cpu, value

fresh = [cost(f"2026.12.{day:02d}") for day in range(1, runs + 1)]
cached = [cost("2026.12.01") for _ in range(runs)]
print(json.dumps({"B1": min(fresh)[:2], "B2": min(cached)[:2], "value": fresh[0][2]}))
"""


@dataclass(frozen=True)
class Number(Artifact):
    """A step's result, so that both sides hand values from step to step."""

    value: int


@step(inline=True)
def leaf(out: Out, value: int) -> Number:
    """Nothing but its result."""
    assert out.name
    return Number(value)


@step(inline=True)
def join(out: Out, parts: list[Number]) -> Number:
    """Needs all leaves."""
    assert out.name
    return Number(sum(part.value for part in parts))


@dataclass(frozen=True, order=True)
class Cost:
    """What one side needed in one run; the smallest is kept."""

    wall_s: float
    cpu_s: float


def main() -> None:
    """Measure both sides, check that they did the same work, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    scratch = LocalPath(tempfile.mkdtemp())
    try:
        peer = peer_figures(scratch)
        ours, value = {}, sum(range(LEAVES))
        ours["B1"] = measure(lambda run: build(scratch / f"fresh-{run}", value))
        ours["B2"] = measure(lambda _run: build(scratch / "fresh-0", value))
        ours["B3"] = measure_import("from lmlab import step, experiment")
        ours.update(catalog(scratch))
        ours["B8"] = measure(lambda _run: plan_many())
        ours["spawned"] = measure(lambda run: build_spawned(scratch / f"spawned-{run}"), parts=SPAWNED)
        ours["B9"] = take_over(scratch / "owner")
        ours.update(on_emulators(scratch, value))
    finally:
        shutil.rmtree(scratch)
    for name, cost in ours.items():
        show(name, cost, peer.get(name), same_work=peer.get("value") == value, as_json=as_json)


@step
def alone(out: Out, after: list[Artifact]) -> Number:
    """Nothing, in a process of its own."""
    assert out.name
    return Number(len(after))


def build(root: LocalPath | Path, expected: int) -> None:
    """Describe, plan and run the graph below a root; every leaf is asked for."""
    leaves = [leaf(f"leaf/{i}", i) for i in range(LEAVES)]
    last = join("join", leaves)
    plan = make_plan(collect([*leaves, last], Versions("2026.12.01")), Path(root))
    record = execute(plan, Path(root)).record("join@2026.12.01")
    assert record is not None
    assert record.result["value"] == expected


def chain(length: int) -> list[Number]:
    """A wide and deep graph: each step needs the three before it."""
    handles: list[Number] = []
    for i in range(length):
        handles.append(join(f"step/{i}", handles[-3:]))
    return handles


def plan_many() -> None:
    """Plan a graph of which nothing is built, in an empty store."""
    plan = make_plan(collect(chain(PLANNED), Versions("2026.12.01")), Path("memory://bench-plan"))
    assert len(plan.to_build) == PLANNED


def catalog(scratch: LocalPath) -> dict[str, Cost]:
    """Costs of the index, over artifacts that the runner made."""
    small, large = (Path(scratch / f"stored-{count}") for count in STORED)
    for root, count in zip((small, large), STORED, strict=True):
        execute(make_plan(collect(chain(count), Versions("2026.12.01")), root), root)
        assert len(Catalog(root).refresh().rows) == count

    def neighbours(_run: int) -> None:
        found, middle = Catalog(small).snapshot, f"step/{STORED[0] // 2}@2026.12.01"
        assert len(found.up(middle)) + len(found.down(middle)) == STORED[0] - 1

    def index(_run: int) -> None:
        (large / FOLDER).remove_tree()
        Catalog(large).refresh()

    def refresh(_run: int) -> None:
        Catalog(large).refresh()

    return {
        name: measure(work) for name, work in (("B7", neighbours), ("refresh", refresh), ("index", index))
    }


def build_spawned(root: LocalPath) -> None:
    """A chain of steps that each run in a process; their module must be one that a process can import."""
    last = import_module("artifacts").alone("alone/0", [])
    for i in range(1, SPAWNED):
        last = import_module("artifacts").alone(f"alone/{i}", [last])
    report = execute(make_plan(collect(last, Versions("2026.12.01")), Path(root)), Path(root))
    assert len(report.endings) == SPAWNED
    assert report.exit_code == 0


def take_over(folder: LocalPath) -> Cost:
    """From the kill of an owner that beats to the claim of what it held."""
    command = [sys.executable, "-c", OWNER, str(folder), str(STALE_S)]
    timing, stopping = claims.Timing(beat_s=0.2, stale_s=STALE_S), threading.Event()
    watch = claims.Watch(timing)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        threading.Timer(0.5, owner.kill).start()
        owner.wait()
        cpu, wall = time.process_time(), time.perf_counter()
        claim = claims.acquire(
            Path(folder),
            {},
            is_done=lambda: False,
            timing=timing,
            stopping=stopping,
            waiting=lambda _owner: None,
            watch=watch,
        )
        assert claim is not None
        assert claim.number == 2
        return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def on_emulators(scratch: LocalPath, expected: int) -> dict[str, Cost]:
    """B5 on the S3 servers that the tests use, and the requests of one step as a proxy counts them."""
    sys.path.insert(0, TESTS)
    import pytest

    from services.fault_proxy import Faults
    from services.places import declare_root, make_bucket
    from services.starting import service

    found: dict[str, Cost] = {}
    for kind, module in (("s3", "moto_s3"), ("ministack", "ministack_s3")):
        with service(module) as server, pytest.MonkeyPatch.context() as patch:
            make_bucket(server)
            root = declare_root(kind, server, scratch, patch)
            found[f"B5-{module}"] = measure(lambda run, root=root: build(root / str(run), expected))
            with service("fault_proxy", server) as counted:
                build(declare_root(kind, counted, scratch, patch), expected)
                seen = [path for _, path in Faults(counted).seen() if ".state" not in path]
            found[f"B5-{module}-requests"] = Cost(len(seen) / (LEAVES + 1), 0.0)
    return found


def measure(work: Callable[[int], None], parts: int = 1) -> Cost:
    """Best cost of RUNS runs in this process, of one of the equal `parts` of each."""
    costs = []
    for run in range(RUNS):
        cpu, wall = time.process_time(), time.perf_counter()
        work(run)
        costs.append(Cost((time.perf_counter() - wall) / parts, (time.process_time() - cpu) / parts))
    return min(costs)


def measure_import(code: str, python: str = sys.executable) -> Cost:
    """Best cost of an import in a new interpreter, the interpreter's own start included."""
    costs = []
    for _ in range(RUNS):
        before, wall = getrusage(RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([python, "-c", code], check=True)
        after, took = getrusage(RUSAGE_CHILDREN), time.perf_counter() - wall
        costs.append(Cost(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(costs)


def peer_figures(scratch: LocalPath) -> dict[str, Any]:
    """The peer's costs by figure and its result; empty without a peer."""
    python = environ.get("LMLAB_PEER_MARIN")
    if python is None:
        return {}
    (scratch / "peer").mkdir()
    script = PEER.replace("CONCURRENT", str(PEER_CONCURRENT))
    command = [python, "-c", script, str(scratch / "peer"), str(LEAVES), str(RUNS)]
    told = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    imported = measure_import("from marin.execution.lazy import ArtifactStep, run", python)
    return {"B1": Cost(*told["B1"]), "B2": Cost(*told["B2"]), "B3": imported, "value": told["value"]}


def show(name: str, ours: Cost, peer: Cost | None, *, same_work: bool, as_json: bool) -> None:
    """One line for a person or a program."""
    figure = {
        "name": name,
        "ours": round(ours.wall_s, 4),
        "peer": None if peer is None else round(peer.wall_s, 4),
        "peer_name": None if peer is None else f"marin StepRunner, max_concurrent={PEER_CONCURRENT}",
        "ratio": None if peer is None else round(peer.wall_s / ours.wall_s, 1),
        "unit": "requests" if name.endswith("requests") else "s",
        "better": "lower",
        "same_work": same_work if peer else None,
        "runs": RUNS,
        "ours_cpu_s": round(ours.cpu_s, 4),
        "peer_cpu_s": None if peer is None else round(peer.cpu_s, 4),
    }
    print(json.dumps(figure) if as_json else " ".join(f"{key}={value}" for key, value in figure.items()))


if __name__ == "__main__":
    main()
