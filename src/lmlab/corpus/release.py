"""A data release: a named version of sources and their mixture, each with what was looked at before.

Pure data: nothing is fetched or tokenized here. An open mandatory item blocks the release by name.
"""

from dataclasses import dataclass

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus.estimate import Counted

MANDATORY = ("license", "counts", "contamination", "quality", "samples")


@dataclass(frozen=True)
class Worklist:
    """What is known of one source; None is an open item."""

    source: str
    license: str | None = None
    """SPDX name, once somebody has read the terms."""
    counts: Counted | None = None
    """Tokens, and how they were counted."""
    contamination: float | None = None
    """Share of documents that hold text of an evaluation."""
    quality: tuple[int, ...] | None = None
    """Documents in each tenth of the quality score, the worst first."""
    samples: int | None = None
    """Documents that somebody has read."""
    waived: tuple[str, ...] = ()
    """Items that are not asked for, each as "item: why"."""

    def open_items(self) -> list[str]:
        """Mandatory items that are neither done nor waived."""
        waived = {item.partition(":")[0] for item in self.waived}
        return [item for item in MANDATORY if getattr(self, item) is None and item not in waived]


@dataclass(frozen=True)
class Release:
    """A named version of the registry and its mixture."""

    name: str
    version: str
    mixture: dict[str, float]
    """Weight of each source."""
    worklists: tuple[Worklist, ...]

    def check(self) -> None:
        """InputError naming all that blocks the release; ConfigError for a mixture of unknown sources."""
        lists, what = (
            {worklist.source: worklist for worklist in self.worklists},
            f"{self.name}@{self.version}",
        )
        if not self.mixture or self.mixture.keys() - lists.keys() or min(self.mixture.values()) <= 0:
            raise ConfigError(
                f"{what} mixes {self.mixture} and has worklists of {', '.join(lists) or 'nothing'}: each "
                "source needs one, and a weight above 0. Add them."
            )
        blocking = [f"{source}: {item}" for source in self.mixture for item in lists[source].open_items()]
        if blocking:
            raise InputError(
                f"{what} is blocked by {len(blocking)} open items ({'; '.join(blocking[:8])}). Do them, or "
                "waive each with its reason."
            )


@dataclass(frozen=True)
class Taken:
    """What a domain corpus takes of one tokenized source."""

    source: str
    tokens: int
    """To train on, repeats included."""
    epochs: float
    """How often each of its training tokens is seen."""
    holdout_tokens: int
    """Kept for evaluation, and never trained on."""


def plan_domain(
    tokens: dict[str, int],
    target: int,
    weights: dict[str, float] | None = None,
    max_epochs: float = 4.0,
    holdout: float = 0.01,
) -> list[Taken]:
    """Slices of tokenized sources (`name@version` -> tokens) up to a target, by weight; nothing is tokenized.

    What a source can't give in `max_epochs`, the others do. ConfigError if all can't reach the target.

    >>> [(t.source, t.tokens, t.epochs) for t in plan_domain({"a": 50, "b": 800}, 600, holdout=0)]
    [('a', 200, 4.0), ('b', 400, 0.5)]
    """
    shares = dict.fromkeys(tokens, 1.0) if weights is None else weights
    if shares.keys() != tokens.keys() or min(shares.values(), default=0) <= 0 or not 0 <= holdout < 1:
        raise ConfigError(
            f"weights={weights} of {', '.join(tokens) or 'nothing'} with holdout={holdout} is no mixture. "
            "Give each source a weight above 0, and a holdout from 0 to below 1."
        )
    held = {source: round(count * holdout) for source, count in tokens.items()}
    most = {source: int((count - held[source]) * max_epochs) for source, count in tokens.items()}
    if sum(most.values()) < target:
        raise ConfigError(
            f"{', '.join(tokens)} gives {sum(most.values())} tokens in {max_epochs:g} epochs, "
            f"and {target} are asked for. Add sources, or allow more epochs."
        )
    taken: dict[str, int] = {}
    while waiting := [source for source in tokens if source not in taken]:
        share = (target - sum(taken.values())) / sum(shares[source] for source in waiting)
        wanted = {source: round(share * shares[source]) for source in waiting}
        taken |= {source: most[source] for source in wanted if wanted[source] > most[source]} or wanted
    return [
        Taken(source, taken[source], taken[source] / max(1, count - held[source]), held[source])
        for source, count in tokens.items()
    ]
