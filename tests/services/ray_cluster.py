"""A Ray cluster on this machine: a head and other nodes, each a real `ray start` with two cores.

Every node is a process group of its own, on free ports, that dies with the test process.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from lmlab.core.process import guarded, kill_group, start

START_S = 90
"""How long a node may take on a busy machine."""
_COMMON = ("--block", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0")
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": str(START_S),
    "RAY_health_check_period_ms": "500",  # a dead node is noticed in seconds
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Cluster:
    """Nodes that `stop` ends, with everything they started."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")))
    """Short: sockets lie below it, whose names have room for about 100 characters."""
    port: int = field(default_factory=_free_port)
    client_port: int = field(default_factory=_free_port)
    cores: int = 2
    """Of each node."""
    store_bytes: int = 100_000_000
    """For the objects of each node."""
    interpreter: Path = Path(sys.executable)
    has_clients: bool = True
    """Whether drivers that are on no node can join; they need the extra `client` of Ray."""
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """For a driver on one of the nodes."""
        return f"127.0.0.1:{self.port}"

    @property
    def client_address(self) -> str:
        """For a driver anywhere."""
        return f"ray://127.0.0.1:{self.client_port}"

    def start_head(self) -> None:
        client = (f"--ray-client-server-port={self.client_port}",) if self.has_clients else ()
        head = ("--head", f"--port={self.port}", "--include-dashboard=false", *client)
        self.start_node(*head, f"--temp-dir={self.folder / 'ray'}")
        deadline = time.monotonic() + START_S
        while self.has_clients and not _listens(self.client_port):
            assert time.monotonic() < deadline, f"no client server: {self._log(0)}"
            time.sleep(0.1)

    def start_node(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a node and wait until it has joined."""
        which = arguments or (f"--address={self.address}",)
        with (self.folder / f"node-{len(self.nodes)}.log").open("wb") as log:
            size = (f"--num-cpus={self.cores}", f"--object-store-memory={self.store_bytes}")
            node = start(
                guarded([self.interpreter.parent / "ray", "start", *which, *size, *_COMMON]),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT},
            )
        self.nodes.append(node)
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in self._log(-1):
            assert node.poll() is None, self._log(-1)
            assert time.monotonic() < deadline, self._log(-1)
            time.sleep(0.1)
        return node

    @staticmethod
    def raylet(node: subprocess.Popen[bytes]) -> int:
        """The process that is the node for the others."""
        return next(pid for pid, text in _children(node.pid) if "raylet/raylet" in text)

    def runs_on(self, pid: int, node: subprocess.Popen[bytes]) -> bool:
        """Whether a worker process belongs to a node."""
        return pid in [child for child, _ in _children(self.raylet(node))]

    def stop_node(self, node: subprocess.Popen[bytes]) -> None:
        kill_group(node, grace_s=0)
        self.nodes.remove(node)

    def stop(self) -> None:
        for node in reversed(self.nodes):
            kill_group(node, grace_s=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log(self, index: int) -> str:
        return (self.folder / f"node-{range(len(self.nodes))[index]}.log").read_text(errors="replace")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _children(pid: int) -> list[tuple[int, str]]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [(int(child), Path(f"/proc/{child}/cmdline").read_text()) for child in listed]
