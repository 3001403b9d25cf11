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
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lmlab.core import environ
from lmlab.core.errors import ConfigError, HostError
from lmlab.core.process import is_alive, start_ticks
from lmlab.core.units import format_bytes
from lmlab.dataflow.failures import WorkersLost
from lmlab.dataflow.runner import Call, Limits, Runner
from lmlab.dataflow.worker import BEAT_S, Death, Desk, Message, Pulse, Reply
from lmlab.storage import Path
from lmlab.storage.lab import lab

_SHIPPED = ("LMLAB_", "AWS_", "GOOGLE_", "GCE_METADATA_HOST", "HF_", *environ.ONE_THREAD)
TRIES = 3
_OPEN: list[str] = []
"""The cluster, once for each runner of this process: it has one connection."""


_Place = tuple[str, int, int | None]
"""A node, a process there, and when that started: its number may be another's later."""


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
        self._flights: dict[Any, _Flight] = {}
        self._numbers = itertools.count()

    def _open(self, call: Call) -> None:
        self._call, wanted = call, call.resources
        cores = [int(each.get("CPU", 0)) for each in self._nodes()]
        self._threads = max(1, min(call.threads, max(cores, default=1) // wanted.cpu))
        asked = {"num_cpus": wanted.cpu, "num_gpus": wanted.gpus, "memory": wanted.memory_bytes or 0}
        self._asked = {name: each * self._threads for name, each in asked.items() if each}
        mine = environ.child_environment()
        variables = {name: mine[name] for name in mine if name.startswith(_SHIPPED) and name != "LMLAB_ON"}
        self._try = self._ray.remote(max_retries=0, runtime_env={"env_vars": variables}, **self._asked)(serve)
        config = lab().file
        self._setup = (self._mailbox, self.limits.memory_bytes, config.read_text() if config else None)
        self._heard_s = self._read_s = time.monotonic()
        self._measure()

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _measure(self) -> None:
        # Behind those that can run wait as many, so that no worker idles and a growing cluster finds work.
        cores = sum(int(each.get("CPU", 0)) for each in self._nodes())
        self._most = max(2 * cores, self.count) // self._asked["num_cpus"] + 1

    def _hand_out(self, waiting: deque[int], suspects: set[int]) -> None:
        while waiting and len(self._flights) < self._most:
            indices = [waiting.popleft()]
            while waiting and len(indices) < self._threads and not suspects & {indices[0], waiting[0]}:
                indices.append(waiting.popleft())
            flight = _Flight(next(self._numbers), tuple(indices))
            messages = [self._call.message(index) for index in indices]
            self._flights[self._try.remote(self._setup, flight.number, messages)] = flight

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
        self._measure()
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

        there = NodeAffinitySchedulingStrategy(place[0], soft=False)
        self._ray.remote(num_cpus=0, max_retries=0)(kill).options(scheduling_strategy=there).remote(place)

    def _no_workers(self) -> str:
        asked = ", ".join(f"{name}={value}" for name, value in self._asked.items())
        have = [f"{n.get('CPU', 0):g} cores, {format_bytes(n.get('memory', 0))}" for n in self._nodes()]
        return (
            f"No worker of the cluster took a task for {self.limits.no_workers_s:.0f} s: one asks for "
            f"{asked}, and the nodes are {'; '.join(have) or 'gone'}. Add nodes, or ask for less."
        )

    def _drop(self) -> None:
        for reference in self._flights:
            self._ray.cancel(reference, force=True)
        self._flights = {}

    def _close(self) -> None:
        _OPEN.pop()
        if not _OPEN:
            self._ray.shutdown()


# -- what runs on the cluster ----------------------------------------------------------------------------


class _Mailbox:
    """The last pulse of each flight since somebody looked, and where it came from."""

    def __init__(self) -> None:
        self._letters: dict[int, tuple[_Place, Pulse]] = {}

    def put(self, flight: int, place: _Place, pulse: Pulse) -> None:
        self._letters[flight] = place, pulse

    def take(self) -> dict[int, tuple[_Place, Pulse]]:
        taken, self._letters = self._letters, {}
        return taken


def serve(setup: tuple[Any, int | None, str | None], flight: int, messages: list[Message]) -> list[Reply]:
    """One flight, on a worker of the cluster; `setup`: mailbox, memory limit, text of the lab's file."""
    import ray

    mailbox, memory_bytes, config = setup
    here = (ray.get_runtime_context().get_node_id(), os.getpid(), start_ticks(os.getpid()))
    environ.put("NUMBA_CACHE_DIR", str(environ.cache_dir() / "numba"))
    if config is not None:  # the file itself may not lie on this machine
        file = Path(environ.cache_dir()) / "labs" / f"{hashlib.sha256(config.encode()).hexdigest()[:16]}.toml"
        file.write_text(config)
        environ.put("LMLAB_CONFIG", str(file))

    def tell(pulse: Pulse) -> None:
        sent = mailbox.put.remote(flight, here, pulse)
        # The first and the last word must arrive: from the first on, silence counts.
        if pulse.last_words or not pulse.tallies:
            ray.wait([sent], timeout=10)

    tell(Pulse(0, {}))
    with Desk(tell, memory_bytes) as desk, ThreadPoolExecutor(len(messages)) as threads:
        return list(threads.map(lambda message: desk.work(*message), messages))


def kill(place: _Place) -> None:
    """End a process of this node, if it is still the same."""
    _, pid, started = place
    if started is not None and is_alive(pid, started):
        os.kill(pid, signal.SIGKILL)


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
        _join(ray, address, shipped)
    except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
        raise HostError(
            f"The cluster {address} can't be used: {_gist(error)} "
            "Check that it runs, with the Python and the Ray of this machine."
        ) from error
    _OPEN.append(address)
    return ray


def _join(ray: Any, address: str, shipped: dict[str, Any]) -> None:
    """Connect; a busy head node gives up starting its side of a client after 30 s, so that is asked again."""
    for left in reversed(range(TRIES)):
        try:
            ray.init(address, logging_level=logging.WARNING, runtime_env=shipped)
        except ConnectionAbortedError:
            if not left:
                raise
        else:
            return


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
