"""Speed of the scaling law that bets are read off, against numpy.polyfit and scipy's Student-t.

`python bench/science.py [--json]`. Both fit the six Grug v16 optima with the floor pinned and predict two
budgets with a 90 % interval; the intervals must agree to 1e-9. Times are CPU seconds of one thread.
"""

import json
import math
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from lmlab.science.laws import Envelope, Floor, Point

V16 = ((1e18, 3.5273), (3e18, 3.3398), (1e19, 3.1494), (3e19, 3.0066), (1e20, 2.8509), (3e20, 2.7222))
FLOOR, BUDGETS, RUNS, REPEATS = 1.6, (1e21, 1e23), 5, 400
Interval = tuple[float, ...]


def ours() -> list[Interval]:
    """The interval of each budget by `Envelope`."""
    points = [Point("run", flops, loss) for flops, loss in V16]
    estimates = [Envelope.fit(points, floor=Floor(FLOOR)).predict(flops) for flops in BUDGETS]
    return [(e.low, e.value, e.high) for e in estimates]


def peer() -> list[Interval]:
    """The same by the usual libraries."""
    found = []
    for flops in BUDGETS:
        x, y = np.log([c for c, _ in V16]), np.log([loss - FLOOR for _, loss in V16])
        slope, intercept = np.polyfit(x, y, 1)
        residual = y - slope * x - intercept
        sigma = math.sqrt(residual @ residual / (len(x) - 2))
        leverage = 1 / len(x) + (math.log(flops) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
        half = stats.t.ppf(0.95, len(x) - 2) * sigma * math.sqrt(1 + leverage)
        center = intercept + slope * math.log(flops)
        found.append(tuple(FLOOR + math.exp(center + sign * half) for sign in (-1, 0, 1)))
    return found


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call: the best of several runs."""
    best = math.inf
    for _ in range(RUNS):
        started = time.process_time()
        for _ in range(REPEATS):
            work()
        best = min(best, (time.process_time() - started) / REPEATS)
    return best


def main() -> None:
    """Print one line."""
    same = np.allclose(ours(), peer(), rtol=0, atol=1e-9)
    mine, theirs = seconds(ours), seconds(peer)
    row = {
        "name": "science-envelope",
        "ours": mine * 1e6,
        "peer": theirs * 1e6,
        "peer_name": f"numpy {np.__version__} polyfit + scipy.stats.t",
        "ratio": theirs / mine,
        "unit": "us CPU / 2 fits with intervals",
        "better": "lower",
        "same_work": same,
        "runs": RUNS,
    }
    if "--json" in sys.argv[1:]:
        print(json.dumps(row))
    else:
        print(f"envelope: {row['ours']:.0f} us, {row['peer_name']} {row['peer']:.0f} us, {row['ratio']:.1f}x")


if __name__ == "__main__":
    main()
