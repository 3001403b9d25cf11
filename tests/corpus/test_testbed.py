"""The arms of the testbed: what each changes, what they share, and that they build."""

import json

import pytest
from sample_archives import prose

from lmlab.artifacts import Artifact, Out, adopt, step
from lmlab.artifacts.graph import collect
from lmlab.artifacts.handles import call_of
from lmlab.artifacts.identity import Versions, find_handles
from lmlab.artifacts.plan import make_plan
from lmlab.artifacts.runner import execute
from lmlab.corpus import ARMS, Attributes, arms
from lmlab.corpus.testbed import Phase
from lmlab.storage import Path

RAW = adopt("raw/x@2026.11.30", source="/nowhere")
EVALS = {"gsm": adopt("evals/gsm@2026.11.30", source="/nowhere")}


@step
def scores(out: Out, documents: Artifact) -> Attributes:
    """Never run here."""
    return Attributes(documents=0, columns=("score",))


def called(handle):
    call = call_of(handle)
    return call.step.name, call.arguments


def test_each_arm_is_what_it_says():
    made = arms("bed", RAW, EVALS, lambda documents: scores("bed/scores", documents))
    assert list(made) == [arm.name for arm in ARMS]
    kinds = {name: called(handle)[0] for name, handle in made.items()}
    assert (kinds.pop("none"), kinds.pop("control"), set(kinds.values())) == (
        "normalize",
        "replay",
        {"select"},
    )
    assert not called(made["none"])[1]["normalization"].exact
    assert called(made["control"])[1]["share"] == 0.5
    stages = {name: [rule.stage for rule in called(made[name])[1]["rules"]] for name in kinds}
    assert stages["fuzzy"] == stages["containment-0.6"] == ["fuzzy"]
    assert stages["overlap-0.3"] == ["fuzzy", "decontaminate"]
    assert stages["quality-0.5"] == ["fuzzy", "quality"]


def test_arms_share_what_they_have_in_common():
    made = arms("bed", RAW, EVALS)
    assert "quality-0.5" not in made  # there are no scores to choose by
    assert len(made) == len([arm for arm in ARMS if arm.phase is Phase.DEDUP])
    near = {
        name: called(made[name])[1]["rules"][0].attributes
        for name in ("fuzzy", "overlap-0.3", "containment-0.6")
    }
    assert near["fuzzy"] is near["overlap-0.3"] is not near["containment-0.6"]
    assert {call_of(h).name for handle in near.values() for h in find_handles(called(handle)[1])} == {
        "bed/exact"
    }


@pytest.mark.slow
def test_arms_build_through_the_runner_and_differ_in_what_they_keep(tmp_path, rows_of):
    """Every step in its own process, handles inside rules and dicts included."""
    texts = [prose(i, 300) for i in range(20)]
    rows = [{"text": text} for text in [*texts, texts[0], texts[1].rpartition(" ")[0]]]
    leaked = {"question": prose(99, 30)}
    rows.append({"text": f"{prose(50, 300)}\n\n{leaked['question']}"})
    for name, lines in (("raw", rows), ("gsm", [leaked])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    evals = {"gsm": adopt("evals/gsm@2026.11.30", source=str(tmp_path / "gsm"))}
    chosen = [arm for arm in ARMS if arm.name in ("none", "fuzzy", "control", "overlap-0.5")]
    made = arms("bed", adopt("raw/x@2026.11.30", source=str(tmp_path / "raw")), evals, chosen=chosen)
    root = Path(tmp_path / "root")
    report = execute(make_plan(collect(list(made.values()), Versions("2026.12.01")), root), root)
    assert not report.failed
    kept = {arm: rows_of(root / call_of(handle).name / "2026.12.01") for arm, handle in made.items()}
    assert {arm: len(documents) for arm, documents in kept.items()} == {
        "none": 23, "fuzzy": 21, "control": 23, "overlap-0.5": 20,
    }  # fmt: skip
    assert len({row["id"] for row in kept["control"]}) <= 12
