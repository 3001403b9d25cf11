"""Numbers that tasks tell about themselves, by stage: sums, extremes and means.

`count` and `gauge` add to the tally of the task that runs in this thread, and do nothing outside one. A tally
travels with each sign of life and with the reply; what a failed try counted is dropped, so that totals do not
depend on who failed or died.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

How = Literal["sum", "max", "min", "avg"]
Tally = dict[str, tuple[How, float, int]]
"""By name: how it is joined, the sum or extreme so far, and of how many values."""

_TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)


def count(name: str, n: float = 1) -> None:
    """Add `n` to a counter of the running task.

    >>> count("records_in")  # outside a task: nothing happens
    """
    gauge(name, n, "sum")


def gauge(name: str, value: float, how: How = "max") -> None:
    """Note a value of the running task, of which the largest, smallest or mean one counts."""
    tally = _TALLY.get()
    if tally is not None:
        _join(tally, name, (how, value, 1))


def counted() -> Tally:
    """What the running task has counted so far."""
    return dict(_TALLY.get() or {})


@contextmanager
def collecting(tally: Tally) -> Generator[None]:
    """What is counted inside goes to `tally`."""
    token = _TALLY.set(tally)
    try:
        yield
    finally:
        _TALLY.reset(token)


class Counters(Mapping[str, float]):
    """All counters of a runner: `counters["records_out"]` over all stages, `counters.of("sort")` of one.

    Tasks that still run count with what they told last.
    """

    def __init__(self) -> None:
        self._ended: defaultdict[str, Tally] = defaultdict(dict)
        self._running: dict[tuple[str, int], Tally] = {}

    def note(self, stage: str, task: int, tally: Tally) -> None:
        """What a running task has counted so far."""
        self._running[stage, task] = tally

    def settle(self, stage: str, task: int, tally: Tally | None) -> None:
        """A try ended, with the counts that stay, or None if it failed."""
        self._running.pop((stage, task), None)
        for name, entry in (tally or {}).items():
            _join(self._ended[stage], name, entry)

    def forget(self, stage: str) -> None:
        """Nothing of this stage runs any more."""
        self._running = {key: tally for key, tally in self._running.items() if key[0] != stage}

    def of(self, stage: str | None) -> dict[str, float]:
        """The counters of one stage, sorted by name; None = of all."""
        joined: Tally = {}
        # Copies, since another thread may look while tasks end.
        running = [(of, tally) for (of, _), tally in list(self._running.items())]
        for tally in [tally for of, tally in [*self._ended.items(), *running] if stage in (None, of)]:
            for name, entry in list(tally.items()):
                _join(joined, name, entry)
        return {
            name: total / n if how == "avg" else total for name, (how, total, n) in sorted(joined.items())
        }

    def __getitem__(self, name: str) -> float:
        return self.of(None)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.of(None))

    def __len__(self) -> int:
        return len(self.of(None))


def _join(tally: Tally, name: str, entry: tuple[How, float, int]) -> None:
    how, value, n = entry
    if name in tally:
        how, old, before = tally[name]
        value = max(old, value) if how == "max" else min(old, value) if how == "min" else old + value
        n += before
    tally[name] = (how, value, n)
