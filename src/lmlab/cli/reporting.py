"""`lmlab report egress`: what was read across regions, by whom, and what broke unnoticed."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from lmlab.core.errors import ConfigError
from lmlab.reports.egress import egress, lines
from lmlab.storage import choose_root
from lmlab.storage.budget import GIB


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """What was read across regions in the last hours, from recorded transfers, and what failed or died."""

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="egress")] = "egress"
    """Which report."""
    hours: float = 24.0
    """How far back."""
    threshold_gib: float = 1.0
    """Who read more is an offender, named with the largest reads."""
    public: bool = False
    """Tell no names, for logs that everybody reads."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON."""


def report(flags: ReportFlags, _fields: list[str]) -> int:
    """`lmlab report`."""
    if flags.what != "egress":
        raise ConfigError(f"lmlab has no report {flags.what!r}. It has: egress.")
    if not flags.hours > 0:
        raise ConfigError(f"--hours {flags.hours:g} is no time to look back on. Give a positive number.")
    root, threshold = choose_root(flags.root), int(flags.threshold_gib * GIB)
    found = egress(root, time.time(), flags.hours, threshold, public=flags.public)
    print(json.dumps(asdict(found), indent=1) if flags.json else "\n".join(lines(found)))
    return 0
