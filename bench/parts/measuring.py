"""CPU-seconds and peak memory of a program or a function, of its whole process tree.

Memory is the largest sum over all processes of what is resident and not shared (mapped files, Ray's object
store), looked at every 50 ms: a shorter peak may be missed. Wall time is not measured: machines are shared.
"""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

EVERY_S = 0.05


@dataclass(frozen=True)
class Measured:
    """What something took."""

    cpu_s: float
    """User and system, children that ended included."""
    peak_mb: float
    worker_mb: float
    """Of the largest single process."""
    result: Any
    """Of a function its value, of a program its output."""


def measure(work: Sequence[str] | Callable[[], Any], timeout_s: float = 1200) -> Measured:
    """Run a program in a process of its own, or a function in this one, whose own memory then counts too."""
    watch = _Watch()
    before_s = _used_s(callable(work))
    if callable(work):
        with watch.over(os.getpid()):
            result = work()
    else:
        with subprocess.Popen(work, stdout=subprocess.PIPE, text=True) as child, watch.over(child.pid):
            result, _ = child.communicate(timeout=timeout_s)
        if child.returncode != 0:
            raise subprocess.CalledProcessError(child.returncode, work)
    return Measured(_used_s(callable(work)) - before_s, watch.peak / 1e6, watch.worker / 1e6, result)


def _used_s(with_own: bool) -> float:
    """With a program the looking, which this process does, is not counted."""
    usages = [resource.getrusage(resource.RUSAGE_CHILDREN)]
    usages += [resource.getrusage(resource.RUSAGE_SELF)] if with_own else []
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class _Watch:
    """Looks at a process tree from a thread."""

    def __init__(self) -> None:
        self.peak = self.worker = 0
        self._done = threading.Event()

    def over(self, pid: int) -> "_Watch":
        self._thread = threading.Thread(target=self._look, args=(psutil.Process(pid),))
        return self

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self, root: psutil.Process) -> None:
        while not self._done.wait(EVERY_S):
            try:
                sizes = [_own_bytes(process) for process in (root, *root.children(recursive=True))]
            except psutil.NoSuchProcess:
                continue
            self.peak, self.worker = max(self.peak, sum(sizes)), max(self.worker, *sizes)


def _own_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return memory.rss - memory.shared
