"""Scaling laws, bets, gates, mixtures, FLOPs, planners: pure functions over finished runs."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.science.bets import Bet as Bet, Call as Call, Measurement as Measurement
    from lmlab.science.flops import (
        Flops as Flops,
        Shape as Shape,
        flops_per_token as flops_per_token,
        utilization as utilization,
    )
    from lmlab.science.laws import (
        Envelope as Envelope,
        Estimate as Estimate,
        Floor as Floor,
        Point as Point,
        Scatter as Scatter,
    )
    from lmlab.science.steps import (
        Called as Called,
        Filed as Filed,
        call_bet as call_bet,
        file_bet as file_bet,
    )

MODULES = {
    ".bets": ("Bet", "Call", "Measurement"),
    ".flops": ("Flops", "Shape", "flops_per_token", "utilization"),
    ".laws": ("Envelope", "Estimate", "Floor", "Point", "Scatter"),
    ".steps": ("Called", "Filed", "call_bet", "file_bet"),
}

__getattr__, __dir__, __all__ = exports(
    __name__, {name: module for module, names in MODULES.items() for name in names}
)
