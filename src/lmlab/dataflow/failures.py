"""How a task fails: at a record (`record` says which), for good (`TaskFailed`), or with its worker
(`WorkersLost`).

An `LmlabError` raised by a task is final and passes unchanged: reading the same bad file again finds it
just as bad. Anything else may be a passing fault and is tried again, a bounded number of times.
"""

from collections.abc import Generator
from contextlib import contextmanager

from lmlab.core.errors import HostError, LmlabError, StepFailed


class RecordFailed(Exception):
    """An exception that knows the record it happened at; the cause is chained."""


class TaskFailed(StepFailed):
    """A task raised in every try it was given."""


class WorkersLost(HostError):
    """The worker processes of one task died in every try it was given."""


@contextmanager
def record(index: int, name: str) -> Generator[None]:
    """Say in any error raised inside which record of the task it belongs to.

    >>> with record(3, "page-17.html"):
    ...     1 / 0
    Traceback (most recent call last):
    lmlab.dataflow.failures.RecordFailed: record 3 (page-17.html): ZeroDivisionError: division by zero
    """
    try:
        yield
    except LmlabError:
        raise
    except Exception as error:  # the boundary of one record: any failure gets its place and goes on up
        raise RecordFailed(f"record {index} ({name}): {type(error).__name__}: {error}") from error
