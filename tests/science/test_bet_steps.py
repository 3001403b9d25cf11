"""Filing and calling a bet on real recipes, through the steps' own bodies."""

import json
from dataclasses import replace

import pytest

from lmlab.artifacts import Artifact, Out, claims, records
from lmlab.core.config import encode
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.provenance import Provenance
from lmlab.models.config import Grug
from lmlab.science import bets
from lmlab.science.flops import flops_per_token
from lmlab.science.laws import Floor
from lmlab.science.steps import call_bet, file_bet
from lmlab.storage import Path, write_json
from lmlab.training import identity
from lmlab.training.recipe import Mix, MuonH, Run
from lmlab.training.steps import Ladder, Rung, Trained, rungs_of

VERSION = "2026.12.01"
WIDTHS = (64, 96, 128)


def law(flops):
    return 0.9 + 30.0 * flops**-0.1


@pytest.fixture
def root(tmp_path):
    return Path(tmp_path)


@pytest.fixture
def recipe(root):
    train, holdout = (
        Artifact.at(root / name / VERSION, name=name, version=VERSION)
        for name in ("tokens/demo", "tokens/demo-holdout")
    )
    optimizer = MuonH(lr=0.02, adam_lr=0.003)
    return Run(Grug.sized(256, vocab=1024), Mix({train: 1.0}), optimizer, 16, 128, 100, validation=holdout)


def flops_of(run):
    return flops_per_token(run.model.shape(run.seq)).training * run.tokens


def make_ladder(root, recipe):
    place = root / "ladder/demo" / VERSION
    rungs = []
    for number, rung in enumerate(rungs_of(recipe, WIDTHS, None)):
        identity.keep(rung, place / "rungs" / f"{number}-{rung.model.hidden}")
        flops, model = flops_of(rung), rung.model
        rungs.append(Rung(model.hidden, 1, 1, rung.tokens, flops, law(flops), 1.0))
    return Ladder.at(place, name="ladder/demo", version=VERSION, rungs=tuple(rungs))


def make_run(root, recipe, bpb, *, name="runs/demo", steps=None):
    place = root / name / VERSION
    identity.keep(recipe, place)
    last = {"step": steps or recipe.steps, "holdout/macro_bpb": bpb}
    rows = [{"step": 1, "train/loss": 7.0}, {"step": 2, "holdout/macro_bpb": 9.0}, last]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"params": 1, "active_params": 1, "loss": 1.0, "train_seconds": 1.0, "compile_seconds": 1.0}
    return Trained.at(
        place,
        name=name,
        version=VERSION,
        steps=recipe.steps,
        tokens=recipe.tokens,
        flops=flops_of(recipe),
        holdout_macro_bpb=bpb,
        tokens_per_second=1.0,
        model=recipe.model,
        **fields,
    )


def file_demo(root, recipe, run="runs/demo", version=VERSION, **changes):
    out = Out.at(root / "bets/demo" / version, name="bets/demo", version=version)
    settings = {"model": recipe.model, "tokens": recipe.tokens, "seq": recipe.seq, **changes}
    filed = file_bet.body(out, make_ladder(root, recipe), run=run, **settings)
    return type(filed).at(out.path, name=out.name, version=version, **vars(filed))


def call_demo(root, bet, run):
    out = Out.at(root / "calls/demo" / VERSION, name="calls/demo", version=VERSION)
    return call_bet.body(out, bet, run)


def test_a_bet_from_a_ladder_hits_where_the_law_holds(root, recipe):
    bet = file_demo(root, recipe)
    assert bet.flops == pytest.approx(flops_of(recipe))
    assert bet.low < bet.value < bet.high
    filed = bets.read(bet.path / "bet.json")
    assert filed.digest == bet.digest
    assert [point.run for point in filed.law.points] == [f"ladder/demo@{VERSION}/{w}" for w in WIDTHS]
    called = call_demo(root, bet, make_run(root, recipe, law(flops_of(recipe))))
    assert (called.outcome, called.differs) == ("hit", ())
    assert called.measured == pytest.approx(law(flops_of(recipe)))
    assert call_demo(root, bet, make_run(root, recipe, bet.high + 0.01)).outcome == "miss"


def test_a_known_floor_is_used(root, recipe):
    ranged = file_demo(root, recipe)
    middle = bets.read(ranged.path / "bet.json").law.floor.value
    pinned = file_demo(root, recipe, version="2026.12.02", floor=Floor(middle))
    assert pinned.value == ranged.value
    assert pinned.high - pinned.low < ranged.high - ranged.low
    true = file_demo(root, recipe, version="2026.12.03", floor=Floor(0.9))
    assert true.value == pytest.approx(law(flops_of(recipe)), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "term"),
    [
        ({"batch": 32}, "batch"),
        ({"validation_tokens": 8192}, "holdout_tokens_per_domain"),
        ({"steps": 90}, "tokens"),
        ({"dtype": "float32"}, "precision"),
        ({"model": Grug.sized(192, vocab=1024)}, "model"),
    ],
)
def test_a_run_trained_otherwise_is_not_comparable(root, recipe, change, term):
    bet = file_demo(root, recipe)
    called = call_demo(root, bet, make_run(root, replace(recipe, **change), 2.0))
    assert called.outcome == "not comparable"
    assert term in called.differs
    assert term in called.reason


def test_another_run_and_an_unfinished_run_are_not_comparable(root, recipe):
    bet = file_demo(root, recipe)
    assert call_demo(root, bet, make_run(root, recipe, 2.0, name="runs/other")).differs == ("run",)
    assert call_demo(root, bet, make_run(root, recipe, 2.0, steps=50)).differs == ("finished",)


def test_a_dev_run_is_the_one_the_bet_named_though_it_is_kept_with_its_user(root, recipe):
    bet = file_demo(root, recipe)
    run = make_run(root, recipe, law(flops_of(recipe)), name="users/tester/runs/demo")
    assert call_demo(root, bet, run).outcome == "hit"


def test_no_bet_on_a_run_that_was_claimed(root, recipe):
    claim(root / "runs/demo" / VERSION, at=0.0)
    with pytest.raises(ConfigError, match=rf"already started \(runs/demo@{VERSION}, attempt 1\)"):
        file_demo(root, recipe)
    assert file_demo(root, recipe, run="runs/demo@2026.12.09").run == "runs/demo@2026.12.09"


def claim(folder, at, config=None, number=1):
    owner = claims.Owner("t", "host", "", 1, None, "run", config or {}, at)
    write_json(claims.claim_path(folder, number, "claim"), encode(owner))


def commit(artifact, started, finished, attempt=1, config=None):
    provenance = Provenance(None, None, None, None, (), "user", "host", "3.11", 0.0)
    record = records.Record(
        schema=records.SCHEMA,
        name=artifact.name,
        version=artifact.version,
        step="step",
        fingerprint="f",
        config=config or {},
        inputs=(),
        after=(),
        result_type="Artifact",
        result={},
        source=None,
        files=records.Files(0, 0, None),
        provenance=provenance,
        source_digest="",
        started=started,
        finished=finished,
        attempt=attempt,
        epoch="e",
    )
    (artifact.path / records.RECORD).remove()
    assert records.commit(artifact.path, record)


def test_a_bet_that_was_committed_after_the_run_began_decides_nothing(root, recipe):
    bet, run = file_demo(root, recipe), make_run(root, recipe, 2.0)
    commit(bet, 999.0, 1000.0)
    commit(run, 940.0, 2000.0)
    called = call_demo(root, bet, run)
    assert called.differs == ("filed",)
    assert "60 s after the run began" in called.reason
    commit(run, 1000.5, 2000.0)
    assert call_demo(root, bet, run).differs == ()


def test_a_resumed_run_began_with_its_first_attempt_at_the_same_recipe(root, recipe):
    bet, run = file_demo(root, recipe), make_run(root, recipe, 2.0)
    commit(bet, 999.0, 1000.0)
    commit(run, 1500.0, 2000.0, attempt=3, config={"steps": 2})
    claim(run.path, at=100.0, config={"steps": 1}, number=1)
    claim(run.path, at=1100.0, config={"steps": 2}, number=2)
    assert call_demo(root, bet, run).differs == ()
    claim(run.path, at=900.0, config={"steps": 2}, number=2)
    assert call_demo(root, bet, run).differs == ("filed",)


def test_an_edited_bet_is_not_called(root, recipe):
    bet = file_demo(root, recipe)
    file = bet.path / "bet.json"
    file.write_text(file.read_text().replace('"batch":16', '"batch":32'))
    with pytest.raises(bets.Tampered, match="changed after it was filed"):
        call_demo(root, bet, make_run(root, recipe, 2.0))


def test_what_a_ladder_cannot_say_is_refused(root, recipe):
    with pytest.raises(ConfigError, match="sequences of 128 tokens, the run 256"):
        file_demo(root, recipe, seq=256)
    with pytest.raises(ConfigError, match="not train/loss"):
        file_demo(root, recipe, metric="train/loss")
    empty = Ladder.at(root / "ladder/empty", name="ladder/empty", rungs=())
    out = Out.at(root / "bets/empty", name="bets/empty", version=VERSION)
    with pytest.raises(ArtifactError, match="has no rungs/"):
        file_bet.body(out, empty, recipe.model, "runs/x", 100, 128)


def test_a_run_without_a_reading_cannot_be_called(root, recipe):
    bet, run = file_demo(root, recipe), make_run(root, recipe, 2.0)
    (run.path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 7.0}\n')
    with pytest.raises(ArtifactError, match="no reading of holdout/macro_bpb"):
        call_demo(root, bet, run)
