"""The arms of the data testbed: the same raw documents, curated in the ways that are to be compared.

Arms are data. Deduplication and decontamination come first, thresholds of quality after them. A run of each
arm at one compute-optimal point is scored as its difference from the arm without deduplication, and the
negative control, which sees half of the documents twice, must come out worse.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from lmlab.artifacts import Artifact
from lmlab.corpus.config import Decontamination, Drop, Fuzzy, Keep, Normalization, Rule
from lmlab.corpus.dedup_steps import decontaminate, near_duplicates, normalize, replay, select
from lmlab.corpus.steps import Documents


class Phase(Enum):
    """Which parameters are chosen first: those of the next phase build on them."""

    DEDUP = "p0"
    QUALITY = "p1"


@dataclass(frozen=True)
class Arm:
    """One way to curate; None leaves a stage out."""

    name: str
    phase: Phase = Phase.DEDUP
    exact: bool = True
    """Drop equal texts."""
    fuzzy: Fuzzy | None = None
    decontamination: Decontamination | None = None
    quality: float | None = None
    """Documents with a lower score are dropped."""
    replayed: float | None = None
    """Share of the documents that is left out, and the others shown again in its place."""


ARMS = (
    Arm("none", exact=False),
    Arm("fuzzy", fuzzy=Fuzzy()),
    Arm("control", exact=False, replayed=0.5),
    *(Arm(f"containment-{c:g}", fuzzy=Fuzzy(containment=c)) for c in (0.6, 0.9)),
    *(
        Arm(f"overlap-{share:g}", fuzzy=Fuzzy(), decontamination=Decontamination(overlap=share, common=None))
        for share in (0.3, 0.5, 0.8)
    ),
    *(Arm(f"quality-{q:g}", Phase.QUALITY, fuzzy=Fuzzy(), quality=q) for q in (0.25, 0.5, 0.75)),
)


def arms(
    name: str,
    raw: Artifact,
    evals: Mapping[str, Artifact],
    scored: Callable[[Documents], Artifact] | None = None,
    chosen: Sequence[Arm] = ARMS,
) -> dict[str, Documents]:
    """The documents of every arm, to be built below `name`; what arms share is built once.

    `scored` makes attributes with a `score` of documents; without it the arms that need them are left out.
    """

    @cache
    def whole(exact: bool) -> Documents:
        return normalize(f"{name}/{'exact' if exact else 'all'}", raw, Normalization(exact=exact))

    @cache
    def near(fuzzy: Fuzzy) -> Artifact:
        return near_duplicates(f"{name}/near-{fuzzy.containment:g}", whole(True), fuzzy)

    @cache
    def repeats(settings: Decontamination) -> Artifact:
        return decontaminate(f"{name}/evals-{settings.overlap:g}", whole(True), dict(evals), settings)

    made = {}
    for arm in (arm for arm in chosen if arm.quality is None or scored is not None):
        rules: list[Rule] = [Drop("fuzzy", near(arm.fuzzy))] if arm.fuzzy else []
        if arm.decontamination:
            rules.append(Drop("decontaminate", repeats(arm.decontamination)))
        if arm.quality is not None and scored is not None:
            rules.append(Keep("quality", scored(whole(True)), "score", at_least=arm.quality))
        made[arm.name] = whole(arm.exact)
        if rules:
            made[arm.name] = select(f"{name}/{arm.name}", whole(arm.exact), tuple(rules))
        if arm.replayed is not None:
            made[arm.name] = replay(f"{name}/{arm.name}", whole(arm.exact), arm.replayed)
    return made
