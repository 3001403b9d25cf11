"""What worker processes run in the tests: tasks that work, raise, kill their own process, or leave marks."""

import os
import signal
import time
from pathlib import Path

from lmlab.core.errors import InputError
from lmlab.dataflow import record, write_jsonl
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


def thread_settings(_task: int) -> tuple[str | None, str | None]:
    return os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS")
