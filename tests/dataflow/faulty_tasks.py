"""What worker processes run in the tests: tasks that work, raise, kill their own process, or leave marks."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from lmlab.core.errors import InputError
from lmlab.dataflow import count, gauge, record, write_jsonl
from lmlab.storage import Path as StoragePath


def slow_square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def process_id(_task: int) -> int:
    time.sleep(0.02)
    return os.getpid()


def poisoned(marks: str) -> None:
    """Fails at its fourth record, and leaves a mark for every try."""
    (Path(marks) / str(time.monotonic_ns())).touch()
    for index, name in enumerate(["a.html", "b.html", "c.html", "d.html"]):
        with record(index, name):
            if name == "d.html":
                raise ValueError("no such entity")


def bad_file(marks: str) -> None:
    (Path(marks) / str(time.monotonic_ns())).touch()
    raise InputError("page.tar is cut off after 12 bytes. Fetch it again.")


def fails_once(marks: str) -> str:
    mark = Path(marks) / "failed"
    if not mark.exists():
        mark.touch()
        raise ConnectionError("reset by peer")
    return "done"


def dies_once_while_writing(target: str) -> int:
    """Writes a file, and the first time is killed in the middle of it."""
    path = StoragePath(target)
    mark = Path(target + ".died")

    def rows() -> object:
        for number in range(1000):
            if number == 500 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"number": number}

    return write_jsonl(path, rows())


def always_dies(marks: str) -> None:
    (Path(marks) / str(time.monotonic_ns())).touch()
    os._exit(7)


def sleeps_after_mark(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


def dies_beside_others(task: tuple[str, int]) -> int:
    """Task 1 always dies; the others need a moment, so that they are beside it."""
    marks, number = task
    if number == 1:
        always_dies(marks)
    time.sleep(0.05)
    return number


def stops_once(marks: str) -> str:
    """The first time this process is stopped, as a wedged one is: it is alive and says nothing."""
    mark = Path(marks) / "stopped"
    if not mark.exists():
        mark.touch()
        time.sleep(0.3)  # until it has said that it lives
        os.kill(os.getpid(), signal.SIGSTOP)
    return "done"


def fills_memory(task: tuple[str, int]) -> int:
    """Holds so many MiB, the longer the more."""
    marks, mebibytes = task
    (Path(marks) / str(time.monotonic_ns())).touch()
    held = bytearray(mebibytes << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    time.sleep(mebibytes / 100)
    return len(held)


def imports_slowly(marks: str) -> int:
    """Needs a module that leaves a mark for each process that imports it."""
    sys.path.insert(0, marks)
    import heavy_library

    time.sleep(0.2)
    return heavy_library.PROCESS


def at_once(marks: str) -> int:
    """The most tasks that were seen to run at one time."""
    mark = Path(marks) / f"{os.getpid()}-{threading.get_ident()}"
    mark.touch()
    time.sleep(0.3)
    seen = len(list(Path(marks).iterdir()))
    mark.unlink()
    return seen


class TwoArguments(InputError):
    """An error that pickles, and can't be unpickled."""

    def __init__(self, name: str, line: int) -> None:
        super().__init__(f"{name}, line {line}, is bad.")


def raises_what_cannot_travel(_task: int) -> None:
    raise TwoArguments("a.jsonl", 7)


def returns_what_cannot_travel(_task: int) -> object:
    return threading.Lock()


def leaves(_task: int) -> None:
    sys.exit("no reason to go on")


def counted(task: tuple[str, int]) -> int:
    """Counts its rows; task 0 fails, and task 1 dies, the first time and half-way."""
    marks, number = task
    count("records_in", 5)
    mark = Path(marks) / f"tried-{number}"
    if number < 2 and not mark.exists():
        mark.touch()
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("reset by peer")
    count("records_in", 5)
    count("records_out", number)
    gauge("longest", number)
    gauge("shortest", number, "min")
    gauge("mean", number, "avg")
    return number


def counts_slowly(marks: str) -> None:
    """Counts at once, then waits until a file says that this was seen."""
    count("records_in", 3)
    while not (Path(marks) / "seen").exists():
        time.sleep(0.02)


def waits_for(folder: str) -> None:
    """Says that it waits, and waits until it may go."""
    waits = Path(folder) / "waits"
    waits.with_suffix(".new").write_text(str(os.getpid()))
    waits.with_suffix(".new").rename(waits)
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)


def thread_settings(_task: int) -> tuple[str | None, str | None]:
    return os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS")


def writes_slowly(target: str) -> int:
    """Writes a file in some seconds; beside it stands the process that began it, for each try."""
    Path(f"{target}.pid-{os.getpid()}").touch()

    def rows() -> object:
        for number in range(100):
            time.sleep(0.02)
            yield {"number": number, "text": f"{Path(target).name} {number}"}

    count("records_out", 100)
    return write_jsonl(StoragePath(target), rows())


def variables(names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def declared_root(_task: int) -> str | None:
    from lmlab.storage.lab import lab

    return lab().root
