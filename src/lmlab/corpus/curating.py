"""Curation in one go: the stages that other steps run one by one, and a split between them.

Stages leave attributes beside the normalized documents, and `select` writes what they keep. Texts are read
and written by the workers, part by part. Every document ends in exactly one of train/, holdout/ and
rejected/<stage>/.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmlab.artifacts import Artifact
from lmlab.core.units import format_seconds
from lmlab.corpus.attributes import Say
from lmlab.corpus.config import Decontamination, Drop, Fuzzy, Holdout, Keep, Normalization
from lmlab.corpus.contamination import mark_contaminated
from lmlab.corpus.fuzzy import mark_near_duplicates, sign
from lmlab.corpus.heldout import HELD_OUT, Split, mark_held_out
from lmlab.corpus.normalizing import normalize_all
from lmlab.corpus.schema import PART_BYTES, Row, earlier_stages, write_stages
from lmlab.corpus.selecting import select_all
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path


@dataclass(frozen=True)
class Recipe:
    """Everything that decides which documents are kept."""

    fuzzy: Fuzzy
    holdout: Holdout
    decontamination: Decontamination
    part_bytes: int = PART_BYTES


def curate_all(documents: Path, out: Path, recipe: Recipe, runner: Runner, say: Say) -> list[dict[str, Any]]:
    """Curate the parts in `documents` into folders below `out`; documents and bytes of every domain.

    Also writes stages.json. What it cost is said, not written: equal inputs must give equal files.
    """
    work, rejected = out / ".work", out / "rejected"
    started_s = time.process_time()
    whole, trainable = work / "normalized", work / "trainable"
    stages = normalize_all([documents], whole, rejected, Normalization(recipe.part_bytes), runner, say)
    sign(whole, work / "bands", recipe.fuzzy, runner, say)
    mark_near_duplicates({"": whole}, {"": work / "bands"}, work / "near", recipe.fuzzy, runner, say)
    near = Drop("fuzzy", Artifact.at(work / "near"))
    split = mark_held_out(whole, work / "held", (near,), recipe.holdout, runner)
    held = Artifact.at(work / "held")
    only_held = Keep("holdout", held, "reason", among=(HELD_OUT,))
    select_all(whole, out / "holdout", (near, only_held), None, runner, say)
    stages += select_all(whole, trainable, (near, Drop("holdout", held)), rejected, runner, say)
    (rejected / "holdout").remove_tree()  # what is held out is not rejected
    evals = {"held-out text": out / "holdout"}
    repeats = mark_contaminated(trainable, evals, work / "repeats", recipe.decontamination, runner, say)
    clean = Drop("decontaminate", Artifact.at(work / "repeats"))
    stages += select_all(trainable, out / "train", (clean,), rejected, runner, say)
    work.remove_tree()
    domains = _domains(split, repeats.column("row").to_numpy())
    write_stages(out, [*earlier_stages(documents), *(stage.row() for stage in stages)], domains)
    cpu_s = {**runner.cpu_s, "this process": time.process_time() - started_s}
    said = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in cpu_s.items())
    say(f"{stages[0].bytes_in / 1e6 / sum(cpu_s.values()):.1f} MB of text per CPU-second ({said})", 1, 1)
    return domains


def _domains(split: Split, repeats: np.ndarray) -> list[Row]:
    rows: list[Row] = [{"domain": name} for name in split.names]
    train = np.delete(np.flatnonzero(~split.is_held), repeats)
    for name, chosen in (("train", train), ("holdout", np.flatnonzero(split.is_held))):
        domain, count = split.domain[chosen], len(rows)
        documents = np.bincount(domain, minlength=count).tolist()
        sizes = np.bincount(domain, split.sizes[chosen], count).astype(int).tolist()
        for row, *counted in zip(rows, documents, sizes, strict=True):
            row |= dict(zip((f"{name}_documents", f"{name}_bytes"), counted, strict=True))
    return sorted(rows, key=lambda row: row["domain"])
