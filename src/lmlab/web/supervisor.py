"""The two processes of the site, kept alive: the query service, and the pages without its credentials.

Both lead groups of their own and die with this process, however it dies. The socket of the pages and the
port of the query service are held here, so that either starts again where it was.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_urlsafe

from lmlab.core import environ, process
from lmlab.core.errors import HostError, LmlabError
from lmlab.core.units import format_seconds
from lmlab.storage import Path

# All that the page server gets of our environment: what finds Python and its packages, language and time.
HARMLESS = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
START_S, TICK_S, GRACE_S, DAY_S = 60.0, 0.1, 5.0, 86_400
FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S = 0.2, 30.0, 60.0

Say = Callable[[str], None]


def supervise(root: Path, listener: socket.socket, say: Say, hosts: Sequence[str] = LOOPBACK) -> None:
    """Serve the site on `listener` until SIGTERM (returns) or Ctrl-C (raises KeyboardInterrupt).

    `hosts` are the names under which browsers may ask for it; "*" allows all.
    """
    host, port = listener.getsockname()[:2]
    stopped, token = threading.Event(), token_urlsafe(32)
    harmless = {name: value for name in HARMLESS if (value := environ.get(name)) is not None}
    with _reserved() as inner, contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: stopped.set()))
        # A script that starts this in the background leaves SIGINT ignored, and then nothing would hear it.
        ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, ctrl_c)
        query = ["lmlab.artifacts.query", "--root", str(root), "--port", str(inner.getsockname()[1])]
        service = _Kept("the query service", query, environ.child_environment(LMLAB_QUERY_TOKEN=token), say)
        stack.callback(service.stop)
        service.await_ready(inner.getsockname())
        told = {"LMLAB_QUERY_URL": "http://{}:{}".format(*inner.getsockname()), "LMLAB_QUERY_TOKEN": token}
        served = ["lmlab.web.app", str(listener.fileno()), *hosts]
        pages = _Kept("the page server", served, {**harmless, **told}, say, (listener.fileno(),))
        stack.callback(pages.stop)
        pages.tend()
        say(f"lmlab shows {root} at http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
        threading.Thread(target=_sweep_daily, args=(root, say, stopped), daemon=True).start()
        while not stopped.wait(TICK_S):
            service.tend()
            pages.tend()


@dataclass
class _Kept:
    """A child that is started again when it dies, later each time that it dies young."""

    name: str
    module: Sequence[str]
    environment: dict[str, str]
    say: Say
    descriptors: Sequence[int] = ()
    child: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    resume: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def tend(self) -> None:
        now = time.monotonic()
        if self.child is not None and (code := self.child.poll()) is not None:
            process.kill_group(self.child, grace_s=0)
            is_young = now - self.started < STEADY_S
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S) if is_young else FIRST_PAUSE_S
            self.child, self.resume = None, now + self.pause_s
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self.say(f"{self.name} {how}; it starts again in {format_seconds(self.pause_s)}")
        if self.child is None and now >= self.resume:
            argv = process.guarded([sys.executable, "-m", *self.module])
            given = {"env": self.environment, "pass_fds": self.descriptors}
            self.child, self.started = process.start(argv, stdout=subprocess.DEVNULL, **given), now

    def await_ready(self, address: tuple[str, int]) -> None:
        self.tend()
        while time.monotonic() < self.started + START_S:
            if self.child is None or self.child.poll() is not None:
                raise HostError(f"{self.name} ended as it started, so there is nothing to show. See above.")
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
                return
            time.sleep(TICK_S)
        raise HostError(f"{self.name} is not ready after {START_S:.0f} s. Is the root's store reachable?")

    def stop(self) -> None:
        if self.child is not None:
            process.kill_group(self.child, GRACE_S)


def _reserved() -> socket.socket:
    """A free port that is ours but not listened on: a child takes it, and until then it refuses at once."""
    inner = socket.socket()
    inner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    inner.bind(("127.0.0.1", 0))
    return inner


def _sweep_daily(root: Path, say: Say, stopped: threading.Event) -> None:
    """Remove expired scratch below a local root now and once a day; buckets expire theirs by rules."""
    from lmlab.storage.scratch import sweep

    while root.is_local:
        try:
            sweep(root, time.time())
        except LmlabError as error:
            say(f"expired scratch can't be swept: {error}")
        if stopped.wait(DAY_S):
            return
