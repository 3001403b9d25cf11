"""Many small objects, one large one and a listing on an S3 emulator: B6 of the orchestration spec.

B6-put and B6-get: 200 objects of 1 KB by 16 threads. get-64MB: one object whole. list-200: one folder. The
peer is s3fs, run by the interpreter named in LMLAB_PEER_MARIN against the same server, by 16 threads too; as
B6-put-bulk and B6-get-bulk it sends all 200 through its event loop at once, while ours keeps to 16 threads.
Seconds are wall-clock, the best of the runs. An emulator computes for each request about as long as ours
takes in all (`server_cpu_s`), so `ratio` says more of it than of us: where LMLAB_PEER_RCLONE names an rclone,
a compiled server, that one serves (it ignores put-if-absent, which nothing here needs). `cpu_ratio` compares
the clients' own CPU seconds.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path as LocalPath
from typing import Any

from lmlab.core import environ
from lmlab.storage import Path

COUNT, THREADS, RUNS, LARGE = 200, 16, 5, 64 << 20
RCLONE = "LMLAB_PEER_RCLONE"
PEER_FORMS = (f"s3fs, {THREADS} threads", "s3fs, all at once in its event loop")
TESTS = LocalPath(__file__).parents[1] / "tests"

# What the peer's interpreter runs: prints [wall, CPU] of each figure and what it read.
PEER = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
import s3fs
endpoint, count, threads, runs, large = sys.argv[1], *map(int, sys.argv[2:])
fs = s3fs.S3FileSystem(key="testing", secret="testing", endpoint_url=endpoint, use_listings_cache=False,
                       config_kwargs={"max_pool_connections": 128})
names, data, big = [f"bench/peer/{i:04}" for i in range(count)], b"x" * 1024, bytes(large)
pool = ThreadPoolExecutor(threads)
fs.pipe_file("bench/peer-large", big)
forms = {
    "B6-put": lambda: list(pool.map(lambda n: fs.pipe_file(n, data), names)),
    "B6-get": lambda: list(pool.map(fs.cat_file, names)),
    "B6-put-bulk": lambda: fs.pipe({n: data for n in names}),
    "B6-get-bulk": lambda: list(fs.cat(names).values()),
    "get-64MB": lambda: fs.cat_file("bench/peer-large"),
    "list-200": lambda: fs.ls("bench/peer", detail=True),
}
told = {}
for name, form in forms.items():
    costs = []
    for _ in range(runs):
        cpu, wall = time.process_time(), time.perf_counter()
        value = form()
        costs.append((time.perf_counter() - wall, time.process_time() - cpu))
    told[name] = *min(costs), (sum(map(len, value)) if name.startswith("B6-get") else len(value or names))
print(json.dumps(told))
"""


@dataclass(frozen=True, order=True)
class Cost:
    """What one side needed in one run."""

    wall_s: float
    cpu_s: float
    done: int
    server_cpu_s: float = 0.0


def main() -> None:
    """Start a server, measure both sides on it, check that they did the same work, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    default = "rclone" if environ.get(RCLONE) else "ministack_s3"
    parser.add_argument("--server", choices=["moto_s3", "ministack_s3", "rclone"], default=default)
    arguments = parser.parse_args()
    start = rclone if arguments.server == "rclone" else partial(emulator, arguments.server)
    with start() as (endpoint, server):
        ours, peer = our_figures(endpoint, server), peer_figures(endpoint)
    for name in ("B6-put", "B6-get", "B6-put-bulk", "B6-get-bulk", "get-64MB", "list-200"):
        show(name, ours[name.removesuffix("-bulk")], peer.get(name), as_json=arguments.json)


@contextlib.contextmanager
def emulator(name: str) -> Generator[tuple[str, int]]:
    """One of the tests' S3 servers: its address and process id."""
    command, pipe = [sys.executable, "-m", f"services.{name}"], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=TESTS, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        try:
            request = urllib.request.Request(f"{endpoint}/bench", method="PUT")
            urllib.request.urlopen(request, timeout=20).close()
            yield endpoint, server.pid
        finally:
            server.stdin.close()


@contextlib.contextmanager
def rclone() -> Generator[tuple[str, int]]:
    """The program named in LMLAB_PEER_RCLONE as an S3 server over an empty folder in memory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", "testing,testing", "--log-level", "ERROR"]
    command = [str(environ.get(RCLONE)), "serve", "s3", *options]
    memory = "/dev/shm" if LocalPath("/dev/shm").exists() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, subprocess.Popen([*command, folder]) as server:
        (LocalPath(folder) / "bench").mkdir()
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}", server.pid
        finally:
            server.terminate()


def our_figures(endpoint: str, server: int) -> dict[str, Any]:
    """Best wall and CPU seconds of each figure, and its amount of work."""
    with tempfile.TemporaryDirectory() as folder:
        key = LocalPath(folder) / "key"
        key.write_text("testing")
        (LocalPath(folder) / "lmlab.toml").write_text(
            f'[backends."s3://"]\nendpoint = "{endpoint}"\nregion = "us-east-1"\nallow_http = true\n'
            f'access_key = "file:{key}"\nsecret_key = "file:{key}"\n'
        )
        environ.put("LMLAB_CONFIG", f"{folder}/lmlab.toml")
        return measure_all(Path("s3://bench/ours"), lambda work: best(work, server))


def measure_all(root: Path, best: Callable[[Callable[[], int]], Cost]) -> dict[str, Any]:
    """The figures below a root."""
    paths = [root / "small" / f"{i:04}" for i in range(COUNT)]
    data, large = b"x" * 1024, root / "large"
    large.write_bytes(bytes(LARGE))
    with ThreadPoolExecutor(THREADS) as pool:
        return {
            "B6-put": best(lambda: len(list(pool.map(lambda path: path.write_bytes(data), paths)))),
            "B6-get": best(lambda: sum(map(len, pool.map(Path.read_bytes, paths)))),
            "get-64MB": best(lambda: len(large.read_bytes())),
            "list-200": best(lambda: len((root / "small").walk_stats())),
        }


def best(work: Callable[[], int], server: int) -> Cost:
    """The least of RUNS runs."""
    costs = []
    for _ in range(RUNS):
        cpu, wall, theirs = time.process_time(), time.perf_counter(), cpu_of(server)
        done = work()
        costs.append(
            Cost(time.perf_counter() - wall, time.process_time() - cpu, done, cpu_of(server) - theirs)
        )
    return min(costs)


def cpu_of(pid: int) -> float:
    """CPU seconds of another process so far; the system counts in hundredths."""
    fields = LocalPath(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def peer_figures(endpoint: str) -> dict[str, Any]:
    """The peer's costs and its amount of work; empty without a peer."""
    python = environ.get("LMLAB_PEER_MARIN")
    if python is None:
        return {}
    numbers = [str(number) for number in (COUNT, THREADS, RUNS, LARGE)]
    command = [python, "-c", PEER, endpoint, *numbers]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    return {name: Cost(*cost) for name, cost in json.loads(told).items()}


def show(name: str, ours: Cost, peer: Cost | None, *, as_json: bool) -> None:
    """One line for a person or a program."""
    figure = {
        "name": name,
        "ours": round(ours.wall_s, 4),
        "peer": None if peer is None else round(peer.wall_s, 4),
        "peer_name": None if peer is None else PEER_FORMS[name.endswith("-bulk")],
        "ratio": None if peer is None else round(peer.wall_s / ours.wall_s, 1),
        "unit": "s",
        "better": "lower",
        "same_work": ours.done == peer.done if peer else None,
        "runs": RUNS,
        "ours_cpu_s": round(ours.cpu_s, 4),
        "peer_cpu_s": None if peer is None else round(peer.cpu_s, 4),
        "cpu_ratio": None if peer is None else round(peer.cpu_s / ours.cpu_s, 1),
        "server_cpu_s": round(ours.server_cpu_s, 4),
    }
    print(json.dumps(figure) if as_json else " ".join(f"{key}={value}" for key, value in figure.items()))


if __name__ == "__main__":
    main()
