"""A server as a child process, and a client to it: how steps, benchmarks and tests ask a model over HTTP."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lmlab.core import environ, process
from lmlab.core.errors import StepFailed
from lmlab.serving.commands import check_folder, listen

if TYPE_CHECKING:
    import httpx

START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 300.0
LAST_WORDS_S = 10.0


@contextmanager
def running(model: Path, name: str) -> Generator["httpx.Client"]:
    """Serve a model folder on a free loopback port; the server and its whole group are gone afterwards.

    Raises StepFailed with the server's last words if it doesn't come up.
    """
    import httpx

    check_folder(model)
    with tempfile.TemporaryFile() as output, listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        child = _start(model, name, listener.fileno(), output)
        # Only the child holds the port now: when it dies, waiting requests fail instead of hanging.
        listener.close()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_LIMIT_S) as client:
                _wait_for(client, child, output)
                yield client
        finally:
            process.kill_group(child)


def _start(model: Path, name: str, descriptor: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return process.start(
        [sys.executable, "-m", "lmlab.serving.child", str(os.getpid()), str(descriptor), name, model],
        env=environ.child_environment(),
        pass_fds=(descriptor,),
        stdout=output,
        stderr=output,
    )


def _wait_for(client: "httpx.Client", child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    """The port is open from the start, so one request waits until the model is loaded."""
    import httpx

    try:
        client.get("/health", timeout=START_LIMIT_S).raise_for_status()
    except httpx.HTTPError as error:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=LAST_WORDS_S)  # it lost its port first, and its words come after
        process.kill_group(child, grace_s=0)
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise StepFailed(
            f"the server did not come up (exit code {child.returncode}, {type(error).__name__}): {said[-1]}"
        ) from error
