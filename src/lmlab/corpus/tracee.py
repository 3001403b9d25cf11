"""The sandboxed side of `tracing`: runs the tests of one file and writes what every line of them did.

It is started by path with the standard library alone: tests that run here can't reach lmlab. Arguments: the
repository, the test file in it, where rows go, and the most lines that one trace may have.
"""

import ctypes
import importlib.util
import inspect
import json
import linecache
import os
import reprlib
import resource
import signal
import sys
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

LIMITS = {"AS": 2 << 30, "CPU": 60, "FSIZE": 64 << 20, "NOFILE": 256, "CORE": 0}
NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000  # CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID
SHOWN = (int, float, complex, str, bytes, bool, type(None), list, tuple, dict, set, frozenset, range)


def confine() -> bool:
    """Limit what this process may use, and leave the network if the kernel allows it; whether it did."""
    for name, limit in LIMITS.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    libc = ctypes.CDLL(None)
    if libc.unshare(NAMESPACES) != 0:
        return False
    child = os.fork()  # the first process of the new namespace: when it ends, all that tests started end too
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    libc.prctl(1, signal.SIGKILL)
    return True


class Trace:
    """The lines that ran below one folder, each with the variables it changed."""

    def __init__(self, root: str, most: int) -> None:
        self.root, self.most, self.depth = root, most, 0
        self.lines: list[str] = []
        self.last: dict[FrameType, tuple[int, dict[str, str]]] = {}
        """Of each running frame: the trace line it is at, and its variables before that line."""
        self.raising: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, value: Any) -> "Trace | None":
        """What Python calls for each event."""
        code = frame.f_code
        is_own = code.co_filename.startswith(self.root) and not code.co_name.startswith("<")
        if not is_own or len(self.lines) >= self.most:
            return None
        now, indent = shown(frame), "  " * self.depth
        if event == "call":
            given = ", ".join(f"{name}={text}" for name, text in now.items())
            place = f"{code.co_filename.removeprefix(self.root)}:{frame.f_lineno}"
            self._add(f"{indent}call {code.co_name}({given})  # {place}", frame, now)
            self.depth += 1
            return self
        at, before = self.last[frame]
        changed = [f"{name} = {text}" for name, text in now.items() if before.get(name) != text]
        self.lines[at] += f"  # {', '.join(changed)}" if changed else ""
        if event == "line":
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            self._add(f"{indent}{frame.f_lineno}: {text}", frame, now)
        elif event == "exception":
            self._add(f"{indent}raise {value[0].__name__}", frame, now)
            self.raising = frame
        elif event == "return":
            if self.raising is not frame:  # else it is no return: the exception goes on to the caller
                self.lines.append(f"{indent}return {show(value)}")
            self.depth -= 1
            del self.last[frame]
        return self

    def _add(self, line: str, frame: FrameType, now: dict[str, str]) -> None:
        self.lines.append(line)
        self.last[frame], self.raising = (len(self.lines) - 1, now), None


def shown(frame: FrameType) -> dict[str, str]:
    """The local variables of a frame as text."""
    return {name: show(value) for name, value in frame.f_locals.items() if not name.startswith("__")}


class Short(reprlib.Repr):
    """Short texts for values; only the type of one whose own text could run code or hold an address."""

    def repr1(self, x: Any, level: int) -> str:
        """Of a value or one inside it."""
        if type(x) in (bool, type(None)):
            return repr(x)
        return super().repr1(x, level) if type(x) in SHOWN else f"<{type(x).__name__}>"


show = Short().repr


def tests_of(module: Any) -> Iterator[tuple[str, Callable[[], object], Any]]:
    """Name, call and source object of each test that needs no fixture."""
    for name, value in list(vars(module).items()):
        kind: Any = value
        if not inspect.isclass(value):
            if name.startswith("test") and needs_nothing(value):
                yield name, value, value
        elif value.__module__ == module.__name__:
            is_case = issubclass(value, unittest.TestCase)
            for method in dir(value) if is_case or name.startswith("Test") else ():
                if method.startswith("test") and inspect.isfunction(getattr(value, method)):
                    call = kind(method).debug if is_case else getattr(kind(), method)
                    if needs_nothing(call):
                        yield f"{name}.{method}", call, getattr(value, method)


def needs_nothing(call: object) -> bool:
    """Whether this is a function that can be called as it stands."""
    return inspect.isroutine(call) and not inspect.signature(call).parameters


def run(call: Callable[[], object], trace: Trace) -> str:
    """How a test ended."""
    sys.settrace(trace)
    try:
        call()
    except unittest.SkipTest as error:
        return f"skipped: {error}"
    except AssertionError as error:
        return f"failed: {(str(error).strip() or 'AssertionError').splitlines()[0][:200]}"
    except BaseException as error:  # noqa: BLE001 - the boundary of one test, whatever it raises
        return f"error: {type(error).__name__}: {str(error)[:200]}"
    finally:
        sys.settrace(None)
    return "passed"


def main() -> None:
    """Trace the tests of one file."""
    root, path, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[4])
    with Path(sys.argv[3]).open("w") as rows:
        has_network = not confine()
        sys.path[:0] = [str(root), str(root / "src"), str((root / path).parent)]
        os.chdir(root)
        spec: Any = importlib.util.spec_from_file_location(Path(path).stem, root / path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, call, source in tests_of(module):
            about = {"test": f"{path}::{name}", "source": inspect.getsource(source)}
            print(json.dumps({**about, "has_network": has_network}), file=rows, flush=True)
            trace = Trace(f"{root}/", most)
            outcome = run(call, trace)
            ended = {"outcome": outcome, "events": len(trace.lines), "is_cut": len(trace.lines) >= most}
            print(json.dumps({**ended, "trace": trace.lines}), file=rows, flush=True)


if __name__ == "__main__":
    main()
