"""Data that many tasks need, sent once: `Dataset.share(words=...)` writes it, `shared("words")` loads it.

It is loaded when a task first asks, once in each worker.
"""

import pickle
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.storage import Path

_OFFERED: ContextVar[Mapping[str, Path]] = ContextVar("offered", default=MappingProxyType({}))
_LOADING = Lock()


def shared(name: str) -> Any:
    """The value that `Dataset.share` was given under this name; only inside a task."""
    offered = _OFFERED.get()
    if name not in offered:
        raise ConfigError(
            f"No {name!r} is shared, only {sorted(offered)}. Give it with Dataset.share({name}=…)."
        )
    with _LOADING:
        return _load(offered[name])


def offer(values: Mapping[str, Path]) -> None:
    """Say where the values for the task that begins lie."""
    _OFFERED.set(values)


@lru_cache(maxsize=16)
def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - our own run wrote it
