"""How the test services start and end: each is a program that prints its port, and ends when its input does.

The input is a pipe that the test process holds, so a killed test process leaves no service behind.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def service(module: str, *arguments: str, **environment: str) -> Iterator[str]:
    """Run `services.<module>` until the block ends; gives its address."""
    command = [sys.executable, "-m", f"services.{module}", *arguments]
    child = subprocess.Popen(
        command,
        cwd=TESTS,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        line = child.stdout.readline().strip()
        assert line, f"services.{module} ended with {child.wait()} before it had a port"
        yield f"http://127.0.0.1:{line}"
    finally:
        child.stdin.close()
        child.wait(timeout=20)
        child.stdout.close()


def end_with_owner() -> None:
    """End this process at once when the process that started it is gone."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def say_port(port: int) -> None:
    """Tell the owner where this service listens."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def serve_app(app) -> None:
    """Serve an ASGI app on a free port until the owner is gone."""
    import uvicorn

    end_with_owner()
    # Named TCP, so that asyncio switches Nagle's algorithm off: it costs 40 ms an answer.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", access_log=False))
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    say_port(listener.getsockname()[1])
    await task
