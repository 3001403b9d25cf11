"""What runs report about themselves: the `Tracker` protocol and the JSON-lines file behind it."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__, {"JsonLines": ".tracker", "Tracker": ".tracker", "read_metrics": ".tracker"}
)
