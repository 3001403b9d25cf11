"""A gang that srun or mpirun started, `lmlab run --gang` on every rank: rank 0 leads, the others follow.

The leader alone plans, claims and commits; over TCP it tells the followers in each round what to run, and
they say how it ended. Frames are pickles, so both ends first prove that they know the gang's token. Every
wait ends: a dead or silent follower fails the step, a dead or silent leader ends its followers.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from lmlab.artifacts import records
from lmlab.artifacts.body import Produced
from lmlab.artifacts.child import Task
from lmlab.artifacts.claims import Claim, Timing
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.gang import Inbox, Lines, append, free_address, gather, of_rank, run_rank, unheard
from lmlab.artifacts.launch import Control, Job
from lmlab.artifacts.plan import Plan
from lmlab.core import environ
from lmlab.core.errors import ConfigError, HostError, LmlabError
from lmlab.storage import Path

_TOKEN = "LMLAB_GANG_TOKEN"  # noqa: S105 - the variable's name
_TICK_S = 0.05
_BEAT_S = 2.0
_SILENCE_S = 60.0
_JOIN_S = 300.0
_PLACES = (
    ("LMLAB_TASK_INDEX", "LMLAB_TASK_COUNT"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
)


@dataclass(frozen=True)
class Member:
    """This process's place in a gang."""

    rank: int
    size: int
    address: tuple[str, int]
    """Where the leader listens."""
    token: bytes

    @classmethod
    def found(cls) -> "Member":
        """As the environment says. Raises ConfigError naming what it lacks."""
        places = [(environ.get(rank) or "", environ.get(size) or "") for rank, size in _PLACES]
        known = [(int(rank), int(size)) for rank, size in places if rank.isdigit() and size.isdigit()]
        host, _, port = (environ.get("LMLAB_COORDINATOR") or "").rpartition(":")
        token = environ.get(_TOKEN)
        needs = {
            "a rank and a size (LMLAB_TASK_INDEX and LMLAB_TASK_COUNT)": bool(known)
            and known[0][0] < known[0][1],
            "LMLAB_COORDINATOR (host:port of rank 0)": bool(host) and port.isdigit(),
            f"{_TOKEN} (a secret of this gang)": bool(token),
        }
        if not all(needs.values()):
            missing = ", ".join(what for what, is_there in needs.items() if not is_there)
            raise ConfigError(f"--gang: the environment lacks {missing}. Set it alike for every rank.")
        return cls(*known[0], (host, int(port)), str(token).encode())


@dataclass(frozen=True)
class _Message:
    """Both directions speak it. With nothing set it is a sign of life."""

    round: int = 0
    job: tuple[Task, int, Path] | None = None
    """To run: the call, the cores, the root."""
    address: str = ""
    """Where the bodies may meet."""
    stop: bool = False
    """Save, and end the body."""
    abort: bool = False
    """End the body now."""
    output: bytes = b""
    done: bool = False
    failure: Failure | None = None
    bye: int | None = None
    """The gang is over, with this exit code; answered alike."""


class _Peer:
    """The other end of a connection: sends from any thread, and reads and beats in threads of its own."""

    def __init__(self, rank: int, link: Connection, hear: Callable[[int, _Message | None], None]) -> None:
        self.rank, self.is_gone = rank, False
        self._link, self._hear, self._lock, self._heard = link, hear, threading.Lock(), time.monotonic()
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=f"gang-{rank}", daemon=True).start()

    def send(self, message: _Message) -> None:
        """To the peer, if it is still there."""
        try:
            with self._lock:
                self._link.send(message)
        except OSError:  # also half a message to a frozen peer: what follows could not be read
            self._lose()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            bye = None
            while bye is None:
                message: _Message = self._link.recv()
                self._heard, bye = time.monotonic(), message.bye
                self._hear(self.rank, message)
        self._lose()

    def _beat(self) -> None:
        while not self.is_gone:
            self.send(_Message())
            time.sleep(_BEAT_S)
            if time.monotonic() - self._heard > _SILENCE_S:
                self._lose()

    def _lose(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._hear(self.rank, None)


class Leader:
    """Rank 0. Entering it gathers the others; leaving it waits until they have heard that it is over."""

    def __init__(self, member: Member) -> None:
        self._member, self._round = member, 0
        self._job: Job | None = None
        self._peers: dict[int, _Peer] = {}
        self._inbox = Inbox()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.exit_code = 1
        """What the followers will return."""

    def __enter__(self) -> "Leader":
        try:
            server = socket.create_server(self._member.address)
        except OSError as error:
            place = "{}:{}".format(*self._member.address)
            raise HostError(f"--gang: rank 0 can't listen at LMLAB_COORDINATOR={place} ({error}).") from error
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        if not _wait(lambda: len(self._peers) == self._member.size - 1, _JOIN_S):
            missing = sorted(set(range(1, self._member.size)) - set(self._peers))
            raise HostError(f"--gang: ranks {missing} did not come within {_JOIN_S:.0f} s. See their output.")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, LmlabError):
            self.exit_code = error.exit_code
        self._tell(_Message(bye=self.exit_code))
        _wait(lambda: all(peer.is_gone for peer in self._peers.values()), _SILENCE_S)
        self._closed.set()

    def check(self, plan: Plan) -> None:
        """Refuse, before anything runs, an experiment that this gang can't run, or that needs none."""
        size = self._member.size
        asked = {item.node.call.resources.tasks: item.node.address for item in plan.items.values()}
        wrong = sorted(asked.keys() - {1, size})
        if wrong:
            raise ConfigError(
                f"{asked[wrong[0]]} asks for tasks={wrong[0]}, but --gang was started on {size} ranks. Start "
                "as many ranks as it has tasks."
            )
        if size > 1 and size not in asked:
            raise ConfigError(
                f"--gang was started on {size} ranks, but no step asks for more than one, so all but one "
                f"would idle. Write .on(Resources(tasks={size})) after the step that is a program of so many."
            )

    def run(self, job: Job, tasks: int, control: Control) -> Produced | Failure:
        """One round: the body on every rank; rank 0's result, or why the first rank failed."""
        address, abort = free_address(self._member.address[0]), threading.Event()
        own = Control(control.stopping, abort, control.stop_grace_s)
        mine, told = of_rank(job, 0, tasks, address), [(False, False)]

        def tell() -> None:
            now = (control.stopping.is_set(), abort.is_set())
            if now != told[-1]:
                told.append(now)
                self._tell(_Message(self._round, stop=now[0], abort=now[1]))

        with self._lock, ThreadPoolExecutor(1) as pool:
            self._round, self._job, self._inbox = self._round + 1, job, Inbox()
            for peer in self._peers.values():
                if peer.is_gone:
                    self._hear(peer.rank, None)
            self._tell(_Message(self._round, (job.task, job.cpu, job.root), address))
            pool.submit(lambda: self._inbox.put((0, run_rank(mine, own))))
            return gather(self._inbox, mine, control, abort, tell)

    def _tell(self, message: _Message) -> None:
        for peer in self._peers.values():
            peer.send(message)

    def _hear(self, rank: int, message: _Message | None) -> None:
        if message is None:
            gone = f"It has left the gang: its process ended, or was silent for {_SILENCE_S:.0f} s."
            self._inbox.put((rank, Failure("failed", gone)))
        elif message.done and message.round == self._round:
            self._inbox.put((rank, message.failure or Produced("", {}, records.Files(0, 0, None))))
        elif message.output and self._job is not None:
            append(self._job, rank, message.output)

    def _accept(self, server: socket.socket) -> None:
        server.settimeout(0.2)
        with server:
            while not self._closed.is_set():
                with contextlib.suppress(TimeoutError):
                    link = _link(server.accept()[0])
                    # A thread each: a stranger that says nothing must not keep the others out.
                    threading.Thread(target=self._admit, args=(link,), daemon=True).start()

    def _admit(self, link: Connection) -> None:
        with contextlib.suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(link, self._member.token)
            answer_challenge(link, self._member.token)
            rank = link.recv()
            if rank in self._peers or not 0 < rank < self._member.size:
                link.close()
            else:
                self._peers[rank] = _Peer(rank, link, self._hear)


class Follower:
    """A rank above 0: runs what the leader says, until it says that it is over."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._inbox: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._control = Control()
        # Held on the leader's word: each message renews it.
        self._claim = Claim(Path("."), 0, "", None, Timing())

    def stop(self) -> None:
        """Ctrl-C: the body saves what it can. The leader decides what comes next."""
        self._control.stopping.set()

    def follow(self) -> int:
        """Run rounds; returns the leader's exit code. Raises HostError when it is gone."""
        peer = _Peer(0, self._join(), lambda _rank, message: self._inbox.put(message))
        with ThreadPoolExecutor(1) as pool:
            try:
                while (message := self._inbox.get()) is not None:
                    self._claim.renewed = time.monotonic()
                    if message.bye is not None:
                        peer.send(message)
                        return message.bye
                    if message.job is not None:
                        self._control = Control()
                        pool.submit(self._run, message, peer)
                    if message.stop:
                        self._control.stopping.set()
                    if message.abort:
                        self._control.killing.set()
            finally:
                self._control.killing.set()
        raise HostError("The leader of this gang is gone, so its other ranks end. See the output of rank 0.")

    def _run(self, message: _Message, peer: _Peer) -> None:
        assert message.job is not None
        task, cpu, root = message.job
        with Lines(lambda line: peer.send(_Message(output=line))) as lines:
            job = Job(task, cpu, root, lines, self._claim, unheard)
            mine = of_rank(job, self._member.rank, self._member.size, message.address)
            end = run_rank(mine, self._control)
        failure = end if isinstance(end, Failure) else None
        peer.send(_Message(message.round, done=True, failure=failure))

    def _join(self) -> Connection:
        deadline = time.monotonic() + _JOIN_S
        while True:
            if self._control.stopping.is_set():
                raise KeyboardInterrupt
            try:
                link = _link(socket.create_connection(self._member.address, timeout=5))
                if not link.poll(5):
                    raise TimeoutError("nothing answers")
                answer_challenge(link, self._member.token)
                deliver_challenge(link, self._member.token)
                link.send(self._member.rank)
                return link
            except AuthenticationError as error:
                raise ConfigError(
                    f"--gang: the leader has another {_TOKEN}. Give all ranks the same."
                ) from error
            except (OSError, EOFError) as error:
                if time.monotonic() > deadline:
                    place = "{}:{}".format(*self._member.address)
                    raise HostError(f"--gang: no leader at LMLAB_COORDINATOR={place} ({error}).") from error
            time.sleep(_TICK_S)


def _wait(is_over: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_over() and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    return is_over()


def _link(end: socket.socket) -> Connection:
    """A connection whose sends end within a minute: a frozen peer must not freeze this one."""
    end.setblocking(True)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_SILENCE_S), 0))
    return Connection(end.detach())
