"""Tests of a small repository, run for real in the sandbox."""

import subprocess

import pytest

from lmlab.core.errors import InputError
from lmlab.corpus.render import RENDERERS
from lmlab.corpus.tracing import trace_tests
from lmlab.storage import Path

CALC = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, x):
        self.items.append(x)
        return self


def total(values):
    s = 0
    for v in values:
        if v < 0:
            continue
        s += v
    return s
"""
TESTS = """import unittest

from calc import Stack, total


def test_total():
    assert total([1, -2]) == 1


def test_wrong():
    assert total([]) == 1, "empty"


def test_needs_a_fixture(tmp_path):
    raise SystemExit


class TestStack:
    test_data = [1]

    def test_needs_a_fixture_too(self, tmp_path):
        raise SystemExit


class StackTest(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()

    def test_push(self):
        self.assertEqual(self.stack.push(3).items, [3])
"""


@pytest.fixture
def traced(tmp_path):
    def run(tests=TESTS, **how):
        (tmp_path / "tests").mkdir(parents=True, exist_ok=True)
        (tmp_path / "calc.py").write_text(CALC)
        (tmp_path / "tests" / "test_calc.py").write_text(tests)
        rows = list(trace_tests(Path(tmp_path), **how))
        return {row["test"].partition("::")[2]: row for row in rows}

    return run


def test_trace_says_what_every_line_changed(traced):
    row = traced()["test_total"]
    assert row["trace"] == [
        "call test_total()  # tests/test_calc.py:6",
        "  7: assert total([1, -2]) == 1",
        "  call total(values=[1, -2])  # calc.py:10",
        "    11: s = 0  # s = 0",
        "    12: for v in values:  # v = 1",
        "    13: if v < 0:",
        "    15: s += v  # s = 1",
        "    12: for v in values:  # v = -2",
        "    13: if v < 0:",
        "    14: continue",
        "    12: for v in values:",
        "    16: return s",
        "    return 1",
        "  return None",
    ]
    (document,) = RENDERERS["execution_trace"](row)
    assert document.text.startswith(
        "# tests/test_calc.py::test_total: passed\n\n```python\ndef test_total():"
    )


def test_outcomes_are_told_and_tests_that_need_fixtures_left_out(traced):
    rows = traced()
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "test_total": "passed",
        "test_wrong": "failed: empty",
        "StackTest.test_push": "passed",
    }
    assert "  raise AssertionError" in rows["test_wrong"]["trace"]
    assert "  call __init__(self=<Stack>)  # calc.py:2" in rows["StackTest.test_push"]["trace"]


def test_traces_are_the_same_in_every_run(traced):
    assert traced() == traced()


HOSTILE = """import os, socket, subprocess, time

def test_memory():
    bytearray(4 << 30)

def test_disk():
    open("junk", "wb").write(b"x" * (100 << 20))

def test_network():
    socket.create_connection(("192.0.2.1", 80), timeout=0.2)

def test_long():
    for i in range(10**5): pass

def test_leaves_a_process_behind():
    subprocess.Popen(["sleep", "987654"], start_new_session=True)

def test_dies():
    os._exit(7)
"""


def test_what_tests_do_to_the_machine_is_bounded(traced, tmp_path):
    rows = traced(HOSTILE)
    assert rows["test_memory"]["outcome"].startswith("error: MemoryError")
    assert rows["test_disk"]["outcome"] == "error: OSError: [Errno 27] File too large"
    assert rows["test_network"]["outcome"].startswith("error: ")
    if not rows["test_network"]["has_network"]:
        assert "unreachable" in rows["test_network"]["outcome"]
        assert "987654" not in subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout
    assert rows["test_long"]["is_cut"]
    assert len(rows["test_long"]["trace"]) == rows["test_long"]["events"] == 2000
    assert rows["test_dies"]["outcome"] == "error: the process ended with 7"
    assert not (tmp_path / "junk").exists()
    assert not list(Path("/tmp").glob("lmlab-trace-*"))


def test_test_that_never_ends_is_stopped(traced):
    rows = traced("def test_ok(): pass\n\ndef test_spin():\n    while True: pass\n", timeout_s=0.8)
    assert rows["test_ok"]["outcome"] == "passed"
    assert rows["test_spin"]["outcome"] == "error: the process still running after 0.8 s"


def test_repository_without_tests_is_named(tmp_path):
    (tmp_path / "calc.py").write_text(CALC)
    with pytest.raises(InputError, match="no files named test_"):
        list(trace_tests(Path(tmp_path)))


def test_file_that_cannot_be_imported_is_logged_and_left_out(traced, caplog):
    assert traced("import nothing_of_this_name\n") == {}
    assert "can't be traced" in caplog.text
    assert "nothing_of_this_name" in caplog.text
