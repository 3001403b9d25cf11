"""Run as `python experiment_processes.py ROOT DIARY WHAT`: a runner of its own, for tests that kill it."""

import sys

import sample_steps
from sample_steps import count_up, number, slow, stubborn, total

from lmlab.artifacts.claims import Timing
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.runner import Options, execute
from lmlab.storage import Path

root, diary, what = sys.argv[1:4]
handles = {
    "slow": lambda: slow("slow", diary=diary),
    "count": lambda: count_up("count", 40, pause_s=0.05, diary=diary),
    "chain": lambda: total(
        "sum", [number("a", 1, diary=diary), count_up("count", 40, 0.05, diary)], diary=diary
    ),
    "stubborn": lambda: stubborn("stubborn", diary=diary),
    "race": lambda: total(
        "sum", [sample_steps.overlap("o", diary, 0.1), number("n", 2, diary=diary)], diary=diary
    ),
}
timing = Timing(beat_s=0.3, stale_s=4.0, poll_s=0.02) if "--fast" in sys.argv else Timing(poll_s=0.02)
graph = collect([handles[what]()], Versions("2026.12.01"))
report = execute(make_plan(graph, Path(root)), Path(root), Options(timing=timing, stop_grace_s=2.0))
record = report.record(graph.targets[0])
sys.stdout.write(f"{record.result['value'] if record else None} {record.epoch if record else None}\n")
for address, ending in report.failed.items():
    sys.stdout.write(f"{address} {ending.failure}\n")
sys.exit(report.exit_code)
