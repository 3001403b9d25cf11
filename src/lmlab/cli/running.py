"""`lmlab run` and `lmlab plan`: an experiment's file to a plan, and the plan to a result."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import tyro

from lmlab.artifacts import history
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions, shared_login
from lmlab.artifacts.plan import Item, Plan, State, make_plan
from lmlab.artifacts.runner import Options, Report, execute, stop_on_signal
from lmlab.cli import experiment as experiments
from lmlab.cli.table import table
from lmlab.cli.view import watch
from lmlab.core import environ
from lmlab.core.units import format_seconds
from lmlab.dataflow import check_place
from lmlab.storage import Path, choose_root

_SHOWN_CHANGES = 20


@dataclass(frozen=True, kw_only=True)
class _Flags:
    """What describing an experiment takes."""

    experiment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="EXP.py")]
    """The experiment's file, such as experiments/quickstart.py. Its own fields follow after `--`."""
    only: str | None = None
    """Only one artifact and what it needs: its name or address."""
    version: str | None = None
    """Version of all artifacts whose call names none: a date like 2026.12.01, or dev."""
    override: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """NAME=VERSION for one of them, or NAME=/path of existing data in its place; may be repeated."""
    force: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Name of a dev artifact to build again though nothing changed; may be repeated."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON at the end instead of a view."""


@dataclass(frozen=True, kw_only=True)
class RunFlags(_Flags):
    """Build what an experiment describes. What is built already is not built again."""

    on: str = "local"
    """Where the tasks of steps run: local, ray (the cluster of RAY_ADDRESS) or ray://HOST:PORT."""
    race: bool = False
    """One of several runners of this file: build what nobody holds; stop at the first failure of its own."""
    gang: bool = False
    """One rank of a program that srun or mpirun started: rank 0 leads, the others follow."""
    max_concurrent: int = 8
    """Steps at once."""
    no_retry_failed: bool = False
    """Refuse to run while something that failed before is to be built."""
    allow_cross_region: bool = False
    """Run although the root, or what a step reads, lies in another region than this machine."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags(_Flags):
    """Say what a run would build and why. Touches nothing."""

    offline: bool = False
    """Read no records either: only the graph and its versions."""


def plan(flags: PlanFlags, fields: list[str]) -> int:
    """`lmlab plan`."""
    root = choose_root(flags.root)
    planned = _planned(flags, fields, None if flags.offline else root)
    if flags.json:
        print(json.dumps([_row_json(item) for item in planned.items.values()], indent=1))
    else:
        print(_plan_text(planned, root, None if flags.offline else _estimate_s(planned, root)))
    return 0


def run(flags: RunFlags, fields: list[str]) -> int:
    """`lmlab run`."""
    environ.put("LMLAB_ON", check_place(flags.on))
    if flags.gang:
        return _run_in_gang(flags, fields)
    return _run(flags, fields, _options(flags))


def _run_in_gang(flags: RunFlags, fields: list[str]) -> int:
    from lmlab.artifacts.ranks import Follower, Leader, Member

    member = Member.found()
    # A mistake in the file ends every rank by itself, before they wait for each other.
    experiments.load(flags.experiment)
    if member.rank > 0:
        follower = Follower(member)
        with stop_on_signal(follower.stop):
            return follower.follow()
    with Leader(member) as leader:
        options = replace(_options(flags), gang=leader, max_concurrent=1)
        leader.exit_code = _run(flags, fields, options, leader.check)
        return leader.exit_code


def _options(flags: RunFlags) -> Options:
    return Options(
        max_concurrent=flags.max_concurrent,
        race=flags.race,
        retry_failed=not flags.no_retry_failed,
        allow_cross_region=flags.allow_cross_region,
    )


def _run(
    flags: RunFlags, fields: list[str], options: Options, check: Callable[[Plan], None] | None = None
) -> int:
    root = choose_root(flags.root)
    planned = _planned(flags, fields, root)
    if check is not None:
        check(planned)
    if flags.json:
        report = execute(planned, root, options)
        print(json.dumps(_report_json(report), indent=1))
        return report.exit_code
    print(_plan_text(planned, root, _estimate_s(planned, root)), flush=True)
    with watch(planned, sys.stdout) as listen:
        report = execute(planned, root, options, listen)
    print(_ending_text(report, root), flush=True)
    return report.exit_code


def _planned(flags: _Flags, fields: list[str], root: Path | None) -> Plan:
    loaded = experiments.load(flags.experiment)
    version = loaded.version if flags.version is None else flags.version
    graph = collect(experiments.describe(loaded, fields), Versions.of(version, flags.override))
    mutable = [address for address, node in graph.nodes.items() if node.is_mutable]
    if mutable and (login := shared_login()) is not None:
        print(
            f"warning: {mutable[0]} and all dev artifacts of the login {login} are shared with everybody who "
            "uses it. Set LMLAB_USER to your name.",
            file=sys.stderr,
        )
    if flags.only:
        graph = graph.only(flags.only)
    return make_plan(graph, root, flags.force)


# -- what is printed before -------------------------------------------------------------------------


def _plan_text(planned: Plan, root: Path, estimate_s: float | None) -> str:
    items = list(planned.items.values())
    counts = {state: sum(item.state is state for item in items) for state in State}
    head = f"{len(items)} artifacts below {root}: " + ", ".join(f"{n} {s}" for s, n in counts.items() if n)
    if counts[State.BUILD] and estimate_s is not None:
        head += f", about {format_seconds(estimate_s)} by earlier builds"
    shown = [item for item in items if item.state is not State.PRUNED] or items
    some = any(item.node.is_mutable for item in shown)
    rows = [
        [
            item.state,
            item.node.address,
            item.node.call.step.name.strip("_"),
            *(["mutable" if item.node.is_mutable else "fixed"] if some else []),
            _why(item),
        ]
        for item in shown
    ]
    lines = [head, *(f"  {line}" for line in table(rows))]
    if some:
        lines.append("  mutable: rebuilds when its recipe, code or inputs change")
    if len(shown) < len(items):
        lines.append(f"  and {len(items) - len(shown)} that are only needed for what is built")
    return "\n".join(lines + _drift_lines(items))


def _why(item: Item) -> str:
    return item.why if item.is_due or item.drift or item.node.given else ""


def _drift_lines(items: list[Item]) -> list[str]:
    lines: list[str] = []
    for item in items:
        if item.drift and item.state is not State.BUILD:
            lines.append(
                f"warning: {item.node.address} is served although its recipe changed since it was built:"
            )
            lines += [f"    {change}" for change in item.drift[:_SHOWN_CHANGES]]
            if len(item.drift) > _SHOWN_CHANGES:
                lines.append(f"    and {len(item.drift) - _SHOWN_CHANGES} more fields")
    if lines:
        lines.append("    To build with the new recipe: --version dev, or a new date.")
    return lines


def _estimate_s(planned: Plan, root: Path) -> float | None:
    """The sum of earlier durations; None if any step was never built, since a guess would mislead."""
    known = history.last_durations_s(root, [item.node.name for item in planned.to_build])
    return None if not known or None in known else sum(seconds for seconds in known if seconds is not None)


# -- what is printed after --------------------------------------------------------------------------


def _ending_text(report: Report, root: Path) -> str:
    if report.failed or report.stopped:
        return "\n".join(_failure_lines(report))
    built = sum(ending.kind == "built" for ending in report.endings.values())
    served = sum(ending.kind == "served" for ending in report.endings.values())
    if built or served:
        lines = [f"built {built} artifacts in {format_seconds(report.seconds)}"]
        lines[0] += f"; {served} were built by other processes" if served else ""
    else:
        lines = [f"nothing to do: all {len(report.plan.graph.targets)} asked for are built"]
    last = report.plan.graph.targets[-1]
    record = report.record(last)
    if record is None:
        return "\n".join(lines)
    headline, file = record.result.get("headline"), record.result.get("file")
    if isinstance(headline, str):
        lines.append(headline)
    else:
        lines.append(f"{last}: {_short_result(record.result)}")
    if isinstance(file, str):
        lines.append(f"report: {report.plan.graph.nodes[last].folder(root) / file}")
    return "\n".join([*lines, f"next: lmlab show {last}"])


def _short_result(result: dict[str, Any]) -> str:
    shown = [f"{key}={value}" for key, value in result.items() if isinstance(value, str | int | float)]
    return ", ".join(part for part in shown if not part.startswith("type="))[:160] or "built"


def _failure_lines(report: Report) -> list[str]:
    lines: list[str] = []
    first = next(iter(report.failed.items()), None)
    if first is not None:
        address, ending = first
        lines.append(f"failed: {report.plan.items[address].node.call.step.name} {address}")
        lines += [f"  {line}" for line in (ending.failure.cause if ending.failure else "").splitlines()[:6]]
        skipped = sum(e.kind == "skipped" for e in report.endings.values())
        others = len(report.failed) - 1
        if others or skipped:
            lines.append(
                f"  ({others} other failures, {skipped} steps not run because they need a failed one)"
            )
        if ending.log is not None and ending.log.exists():
            lines.append(f"log: {ending.log}")
    elif report.stopped:
        lines.append(f"stopped after {format_seconds(report.seconds)}; what was built is kept")
    return [*lines, f"{'retry' if first else 'continue'}: {_command()}"]


def _command() -> str:
    program, *words = sys.argv
    is_script = program.endswith(".py") and not program.endswith("cli/main.py")
    return shlex.join([*(["python", program] if is_script else ["lmlab"]), *words])


# -- JSON -------------------------------------------------------------------------------------------


def _row_json(item: Item) -> dict[str, Any]:
    return {
        "address": item.node.address,
        "step": item.node.call.step.name.strip("_"),
        "state": str(item.state),
        "why": item.why,
        "mutable": item.node.is_mutable,
        "fingerprint": item.node.fingerprint,
        "inputs": list(item.node.inputs),
        "after": list(item.node.after),
        "drift": [asdict(change) for change in item.drift],
    }


def _report_json(report: Report) -> dict[str, Any]:
    steps = [
        {
            "address": address,
            "end": ending.kind,
            "seconds": round(ending.seconds, 3),
            "error": ending.failure.cause if ending.failure else None,
            "log": str(ending.log) if ending.log and ending.log.exists() else None,
        }
        for address, ending in report.endings.items()
    ]
    records = {target: report.record(target) for target in report.plan.graph.targets}
    return {
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 3),
        "steps": steps,
        "results": {target: record.result if record else None for target, record in records.items()},
    }
