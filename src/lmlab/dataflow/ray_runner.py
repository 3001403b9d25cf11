"""The runner on a Ray cluster: each try of a task is a Ray core task without retries, since we keep the book.

Ray places tasks, starts worker processes and notices dead ones. A mailbox (an actor without a core) carries
the pulses, which tell a task that waits for a node from one that is wedged. Only a named cluster is joined.
"""

import hashlib
import itertools
import logging
import os
import pathlib
import signal
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from lmlab.core import environ
from lmlab.core.errors import ConfigError, HostError
from lmlab.core.process import is_alive, start_ticks
from lmlab.core.units import format_bytes
from lmlab.dataflow.failures import WorkersLost
from lmlab.dataflow.runner import Call, Limits, Runner
from lmlab.dataflow.worker import BEAT_S, Death, Desk, Pulse, Reply
from lmlab.storage.lab import lab

_SHIPPED = ("LMLAB_", "AWS_", "GOOGLE_", "GCE_METADATA_HOST", "HF_", *environ.ONE_THREAD)
_OPEN: list[str] = []
"""The cluster, once for each runner of this process: it has one connection."""


@dataclass(frozen=True)
class _Place:
    """A process on the cluster, and how it can be told from a later one of the same number."""

    node: str
    pid: int
    started: int | None


@dataclass
class _Flight:
    """Tasks that were submitted together, to one worker."""

    number: int
    indices: tuple[int, ...]
    place: _Place | None = None
    """Known from the first pulse on; until then the tasks wait for a worker."""
    silent_s: float = 0.0
    last_words: str = ""


class RayRunner(Runner):
    """The cores of a Ray cluster, one numeric thread each; at least `workers` tasks are submitted at once."""

    def __init__(self, on: str, workers: int, limits: Limits) -> None:
        super().__init__(workers, limits)
        self._ray = _connect(on)
        self._mailbox = self._ray.remote(num_cpus=0, max_restarts=-1)(_Mailbox).remote()
        self._serve = self._ray.remote(max_retries=0)(serve)
        self._flights: dict[Any, _Flight] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OPEN.pop()
        if not _OPEN:
            self._ray.shutdown()

    def _open(self, call: Call) -> None:
        self._call = call
        config = lab().file
        self._setup = Setup(self._mailbox, self.limits.memory_bytes, config.read_text() if config else None)
        wanted = call.resources
        self._threads = max(1, min(call.threads, max(self._cores(), default=1) // wanted.cpu))
        self._options: dict[str, Any] = {
            "num_cpus": wanted.cpu * self._threads,
            "num_gpus": wanted.gpus * self._threads,
            "memory": (wanted.memory_bytes or 0) * self._threads or None,
            "runtime_env": {"env_vars": _environment()},
        }
        self._heard_s = self._read_s = time.monotonic()
        self._most = self._room()

    def _cores(self) -> list[int]:
        return [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]

    def _room(self) -> int:
        """Flights at once: those that can run and as many behind them, so that no worker idles and a growing
        cluster finds work."""
        return max(2 * sum(self._cores()), self.count) // self._options["num_cpus"] + 1

    def _hand_out(self, waiting: deque[int], suspects: set[int]) -> None:
        while waiting and len(self._flights) < self._most:
            indices = [waiting.popleft()]
            while waiting and len(indices) < self._threads and not suspects & {indices[0], waiting[0]}:
                indices.append(waiting.popleft())
            flight = _Flight(next(self._numbers), tuple(indices))
            messages = [self._call.message(index) for index in indices]
            submitted = self._serve.options(**self._options).remote(self._setup, flight.number, messages)
            self._flights[submitted] = flight

    def _collect(self) -> Iterator[Reply | Pulse | Death]:
        ready, _ = self._ray.wait(list(self._flights), timeout=BEAT_S)
        for reference in ready:
            self._heard_s = time.monotonic()
            yield from self._land(reference)
        if time.monotonic() - self._read_s > BEAT_S:
            yield from self._read()
        if time.monotonic() - self._heard_s > self.limits.no_workers_s:
            raise WorkersLost(self._no_workers())

    def _land(self, reference: Any) -> Iterator[Reply | Pulse | Death]:
        """What became of the tasks of one flight."""
        errors = self._ray.exceptions
        try:
            yield from self._ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            raise HostError(
                f"A worker of the cluster can't run lmlab ({_gist(error)}). "
                "Install the same lmlab on all nodes."
            ) from error
        except errors.RayError as error:
            yield from self._read()  # its last words
            why = self._flights[reference].last_words or f"{type(error).__name__}: {_gist(error)}"
            yield Death(self._flights[reference].indices, why)
        del self._flights[reference]

    def _read(self) -> Iterator[Pulse]:
        """The pulses since the last time; who has sent some before and none now may be wedged."""
        passed_s = min(time.monotonic() - self._read_s, 2 * BEAT_S)
        self._read_s = time.monotonic()
        self._most = self._room()
        try:
            letters: dict[int, tuple[_Place, Pulse]] = self._ray.get(self._mailbox.take.remote(), timeout=5)
        except self._ray.exceptions.RayError:
            return  # the mailbox's node died: nobody's silence is known until it stands again
        for flight in self._flights.values():
            if flight.number in letters:
                flight.place, pulse = letters[flight.number]
                flight.silent_s, flight.last_words = 0.0, pulse.last_words
                self._heard_s = time.monotonic()
                yield pulse
            elif flight.place is not None:
                flight.silent_s += passed_s
                if flight.silent_s > self.limits.heartbeat_s and not flight.last_words:
                    flight.last_words = f"no sign of life for {flight.silent_s:.0f} s"
                    self._kill(flight.place)

    def _kill(self, place: _Place) -> None:
        """Ray's own way to end a task asks the worker, which a stopped one does not hear."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(place.node, soft=False)
        self._ray.remote(num_cpus=0, max_retries=0)(kill).options(scheduling_strategy=there).remote(place)

    def _no_workers(self) -> str:
        wanted = {name: value for name, value in self._options.items() if name.startswith("num") and value}
        if self._options["memory"]:
            wanted["memory"] = format_bytes(self._options["memory"])
        there = [
            f"{node['Resources'].get('CPU', 0):g} cores, {format_bytes(node['Resources'].get('memory', 0))}"
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return (
            f"No worker of the cluster took a task for {self.limits.no_workers_s:.0f} s: one asks for "
            f"{', '.join(f'{name}={value}' for name, value in wanted.items())}, and the nodes are "
            f"{'; '.join(there) or 'gone'}. Add nodes, or ask for less."
        )

    def _drop(self) -> None:
        for reference in self._flights:
            self._ray.cancel(reference, force=True)
        self._flights = {}


# -- what runs on the cluster ----------------------------------------------------------------------------


class _Mailbox:
    """The last pulse of each flight since somebody looked."""

    def __init__(self) -> None:
        self._letters: dict[int, tuple[_Place, Pulse]] = {}

    def put(self, flight: int, place: _Place, pulse: Pulse) -> None:
        self._letters[flight] = place, pulse

    def take(self) -> dict[int, tuple[_Place, Pulse]]:
        taken, self._letters = self._letters, {}
        return taken


@dataclass(frozen=True)
class Setup:
    """What a worker has to know beside its tasks."""

    mailbox: Any
    memory_bytes: int | None
    config: str | None
    """The text of the lab's file, which may not lie on that machine."""

    def enter(self) -> None:
        """Put this process in the place of a local worker."""
        environ.put("NUMBA_CACHE_DIR", str(environ.cache_dir() / "numba"))
        if self.config is not None:
            name = f"lmlab-{os.getuid()}-{hashlib.sha256(self.config.encode()).hexdigest()[:16]}.toml"
            file = pathlib.Path(tempfile.gettempdir()) / name
            file.write_text(self.config)
            environ.put("LMLAB_CONFIG", str(file))


def serve(setup: Setup, flight: int, messages: list[tuple[int, bytes, bytes]]) -> list[Reply]:
    """One flight, on a worker of the cluster."""
    import ray

    setup.enter()
    here = _Place(ray.get_runtime_context().get_node_id(), os.getpid(), start_ticks(os.getpid()))

    def tell(pulse: Pulse) -> None:
        sent = setup.mailbox.put.remote(flight, here, pulse)
        # The first and the last word must arrive: from the first on, silence counts.
        if pulse.last_words or not pulse.tallies:
            ray.wait([sent], timeout=10)

    tell(Pulse(0, {}))
    with Desk(tell, setup.memory_bytes) as desk, ThreadPoolExecutor(len(messages)) as threads:
        return list(threads.map(lambda message: desk.work(*message), messages))


def kill(place: _Place) -> None:
    """End a process of this node, if it is still the same."""
    if place.started is not None and is_alive(place.pid, place.started):
        os.kill(place.pid, signal.SIGKILL)


# -- reaching the cluster ----------------------------------------------------------------------------------


def _connect(on: str) -> Any:
    import ray

    address = environ.get("RAY_ADDRESS") if on == "ray" else on
    assert address is not None
    if address in _OPEN:
        _OPEN.append(address)
        return ray
    if ray.is_initialized():
        raise ConfigError("This process is connected to a Ray cluster already. Close that connection first.")
    try:
        # An empty list of modules fails in the cluster.
        shipped = {"py_modules": own} if (own := _own_modules()) else {}
        ray.init(address, logging_level=logging.WARNING, runtime_env=shipped)
    except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
        raise HostError(
            f"The cluster {address} can't be used: {_gist(error)} "
            "Check that it runs, with the Python and the Ray of this machine."
        ) from error
    _OPEN.append(address)
    return ray


def _environment() -> dict[str, str]:
    """Variables that tasks need: ours, and the credentials of stores."""
    mine = environ.child_environment()
    return {name: value for name, value in mine.items() if name.startswith(_SHIPPED) and name != "LMLAB_ON"}


def _own_modules() -> list[str]:
    """Top-level modules that no node has installed: an experiment's file, a package beside it."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    paths = set()
    for name, module in sys.modules.items():
        file = pathlib.Path(getattr(module, "__file__", None) or "")
        place = file.parent if file.name == "__init__.py" else file
        is_found_by_name = file.suffix == ".py" and place.stem == name != "lmlab"
        if is_found_by_name and not str(file).startswith(installed):
            paths.add(str(place))
    return sorted(paths)


def _gist(error: BaseException) -> str:
    """A message in one line; of a traceback the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback" in str(error) else " ".join(lines)[:300]
