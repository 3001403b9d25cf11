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
_START = (
    "Start a cluster with `ray start --head` and set RAY_ADDRESS=HOST:6379, or give --on ray://HOST:10001."
)
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
        self._letters = self._mailbox.take.remote()
        self._serve = self._ray.remote(max_retries=0)(serve)
        self._flights: dict[Any, _Flight] = {}
        self._numbers = itertools.count()
        self._asked_s = self._heard_s = time.monotonic()

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
        self._options: dict[str, Any] = {
            "num_cpus": wanted.cpu * call.threads,
            "num_gpus": wanted.gpus * call.threads,
            "memory": (wanted.memory_bytes or 0) * call.threads or None,
            "runtime_env": {"env_vars": _environment()},
        }
        cores = self._ray.cluster_resources().get("CPU", 0)
        # As many as can run wait behind those, so that no worker idles and a growing cluster finds work.
        self._most = max(2 * int(cores), self.count)
        self._heard_s = time.monotonic()

    def _hand_out(self, waiting: deque[int], suspects: set[int]) -> None:
        while waiting and len(self._flights) * self._options["num_cpus"] < self._most:
            indices = [waiting.popleft()]
            while waiting and len(indices) < self._call.threads and not suspects & {indices[0], waiting[0]}:
                indices.append(waiting.popleft())
            flight = _Flight(next(self._numbers), tuple(indices))
            messages = [self._call.message(index) for index in indices]
            submitted = self._serve.options(**self._options).remote(self._setup, flight.number, messages)
            self._flights[submitted] = flight

    def _collect(self) -> Iterator[Reply | Pulse | Death]:
        asked = [] if self._letters is None else [self._letters]
        ready, _ = self._ray.wait([*asked, *self._flights], timeout=BEAT_S)
        for reference in ready:
            if reference == self._letters:
                self._letters = None
                yield from self._read(reference)
            else:
                self._heard_s = time.monotonic()
                yield from self._land(reference)
        if self._letters is None and time.monotonic() - self._asked_s > BEAT_S:
            self._letters, self._asked_s = self._mailbox.take.remote(), time.monotonic()
        if time.monotonic() - self._heard_s > self.limits.no_workers_s:
            raise WorkersLost(self._no_workers())

    def _land(self, reference: Any) -> Iterator[Reply | Death]:
        """What became of the tasks of one flight."""
        errors = self._ray.exceptions
        flight = self._flights.pop(reference)
        try:
            yield from self._ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            raise HostError(
                f"A worker of the cluster can't run lmlab ({_last_line(error)}). "
                "Install the same lmlab on all nodes."
            ) from error
        except errors.RayError as error:
            yield Death(flight.indices, flight.last_words or f"{type(error).__name__}: {_first_line(error)}")

    def _read(self, reference: Any) -> Iterator[Pulse]:
        """The pulses of the last second; who has sent some before and none now may be wedged."""
        try:
            letters: dict[int, tuple[_Place, Pulse]] = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            return  # the mailbox's node died: nobody's silence is known until it stands again
        passed_s = min(time.monotonic() - self._asked_s, 2 * BEAT_S)
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
        if pulse.last_words:
            ray.wait([sent], timeout=10)

    with Desk(tell, setup.memory_bytes) as desk, ThreadPoolExecutor(len(messages)) as threads:
        return list(threads.map(lambda message: desk.work(*message), messages))


def kill(place: _Place) -> None:
    """End a process of this node, if it is still the same."""
    if place.started is not None and is_alive(place.pid, place.started):
        os.kill(place.pid, signal.SIGKILL)


# -- reaching the cluster ----------------------------------------------------------------------------------


def _connect(on: str) -> Any:
    address = environ.get("RAY_ADDRESS") if on == "ray" else on
    if address is None or address in ("auto", "local"):
        raise ConfigError(f"on={on} needs the cluster in RAY_ADDRESS, which names none ({address}). {_START}")
    if on != "ray" and not on.startswith("ray://"):
        raise ConfigError(f"on={on} is no place for tasks. Give local, ray or ray://HOST:PORT.")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"on={on} needs Ray, which is not installed. Run `pip install lmlab[ray]`."
        ) from None
    if address in _OPEN:
        _OPEN.append(address)
        return ray
    if ray.is_initialized():
        raise ConfigError("This process is connected to a Ray cluster already. Close that connection first.")
    try:
        ray.init(address, logging_level=logging.WARNING, runtime_env={"py_modules": _own_modules()})
    except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
        raise HostError(f"The cluster {address} can't be used: {_first_line(error)} {_START}") from error
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


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
