"""Lazy public names: a package's `__init__` says where each name lives; the module loads on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module


def exports(
    package: str, table: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` for `package` from a table name -> relative module.

    Importing `lmlab.models` must not import jax, yet `from lmlab.models import forward` must work.

    >>> get, listing, names = exports("lmlab.core", {"format_bytes": ".units"})
    >>> get("format_bytes")(2048)
    '2.0 KiB'
    """

    def __getattr__(name: str) -> object:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(table[name], package), name)

    def __dir__() -> list[str]:
        return sorted(table)

    return __getattr__, __dir__, sorted(table)
