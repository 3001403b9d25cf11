"""Reports: one self-contained HTML file, made of facts read from artifacts and never of typed numbers."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.reports.steps import Report as Report, report as report

__getattr__, __dir__, __all__ = exports(__name__, {"Report": ".steps", "report": ".steps"})
