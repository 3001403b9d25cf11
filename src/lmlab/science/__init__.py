"""Scaling laws, bets, gates, mixtures, FLOPs, planners: pure functions."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {"Flops": ".flops", "Shape": ".flops", "flops_per_token": ".flops", "utilization": ".flops"},
)
