"""Children live in their own group, die with their owner, and are killed whole."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lmlab.core import process

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def wait_until(claim, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.02)
    return False


def test_killing_a_group_takes_the_grandchildren_too():
    script = (
        f"import subprocess, time; p = subprocess.Popen({SLEEP!r}); print(p.pid, flush=True); time.sleep(60)"
    )
    child = process.start([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        grandchild = int(child.stdout.readline())
    process.kill_group(child, grace_s=2)
    assert wait_until(lambda: process.start_ticks(grandchild) is None)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace():
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    child = process.start([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    process.kill_group(child, grace_s=0.2)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_guarded_program_dies_when_its_owner_is_killed():
    script = (
        "import time; from lmlab.core import process; "
        f"p = process.start(process.guarded({SLEEP!r})); print(p.pid, flush=True); time.sleep(60)"
    )
    owner = process.start([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        grandchild = int(owner.stdout.readline())
    assert process.start_ticks(grandchild) is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_until(lambda: process.start_ticks(grandchild) is None)


def test_a_process_is_recognized_by_its_start_and_not_by_its_number():
    mine = process.start_ticks(os.getpid())
    assert mine is not None
    assert process.is_alive(os.getpid(), mine)
    assert not process.is_alive(os.getpid(), mine + 1)
