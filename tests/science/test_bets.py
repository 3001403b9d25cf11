"""Bets: filed before the run, tamper-evident, and only called by a measurement under the same terms."""

import re

import pytest

from lmlab.core.errors import ConfigError, InputError
from lmlab.science import bets
from lmlab.science.laws import Envelope, Floor, Point
from lmlab.storage import Path

V16 = ((1e18, 3.5273), (3e18, 3.3398), (1e19, 3.1494), (3e19, 3.0066), (1e20, 2.8509), (3e20, 2.7222))
TERMS = {
    "holdout": "paloma@v1",
    "seq": 8192,
    "sequences": 1024,
    "mixture": "stage-1",
    "learning_rate_phase": "before the final cooldown",
    "tokens": 8e12,
}


def law(floor=None):
    points = [Point(f"isoflop-{c:g}", c, loss) for c, loss in V16]
    return Envelope.fit(points, floor=floor or Floor(1.6))


def filed(run="runs/moe", flops=1e21, terms=None, **changes):
    settings = {"metric": "paloma/macro_loss", "by": law(), "started": None, **changes}
    return bets.file(run, flops=flops, terms=terms or TERMS, **settings)


def measurement(value, run="runs/moe", metric="paloma/macro_loss", finished=True, **terms):
    return bets.Measurement(run, metric, value, {**TERMS, **terms}, finished)


def test_the_1e21_bet_hit():
    called = bets.call(filed(), measurement(2.599))
    assert (called.outcome, called.inside, called.differs) == ("hit", True, ())
    assert called.error == pytest.approx(2.599 - 2.605, abs=1e-3)
    assert called.reason == "2.5990 is inside the 90% interval 2.5952 to 2.6148"


def test_the_1e23_bet_was_one_sided_and_hit_below_its_interval():
    bet = filed(flops=1e23, at_most=2.252)
    called = bets.call(bet, measurement(2.234))
    assert (called.outcome, called.inside) == ("hit", False)
    assert "target of at most 2.2520" in called.reason
    assert "below the 90% interval" in called.reason
    assert bets.call(filed(flops=1e23), measurement(2.234)).outcome == "miss"
    assert bets.call(filed(flops=1e23, by=law(Floor(1.6, 1.4, 1.7))), measurement(2.234)).outcome == "hit"


def test_a_cooldown_cannot_retire_the_bet_on_the_main_run():
    cooldown = measurement(
        2.2772, seq=65_536, learning_rate_phase="0", tokens=2.1e12, mixture="cooldown-long"
    )
    called = bets.call(filed(at_most=2.269), cooldown)
    assert called.outcome == "not comparable"
    assert set(called.differs) == {"seq", "learning_rate_phase", "tokens", "mixture"}
    assert "seq: filed 8192, measured 65536" in called.reason


@pytest.mark.parametrize(
    ("measured", "term"),
    [
        (measurement(2.6, run="runs/other"), "run"),
        (measurement(2.6, metric="c4/bpb"), "metric"),
        (measurement(2.6, finished=False), "finished"),
        (measurement(float("nan")), "value"),
        (bets.Measurement("runs/moe", "paloma/macro_loss", 2.6, {"holdout": "paloma@v1"}), "sequences"),
    ],
)
def test_anything_else_that_differs_is_named(measured, term):
    called = bets.call(filed(), measured)
    assert called.outcome == "not comparable"
    assert term in called.differs


def test_rounding_of_a_float_term_is_no_difference_but_another_count_is():
    assert bets.call(filed(), measurement(2.6, tokens=8.001e12)).outcome == "hit"
    assert bets.call(filed(), measurement(2.6, tokens=8.1e12)).differs == ("tokens",)
    assert bets.call(filed(), measurement(2.6, sequences=1025)).differs == ("sequences",)


def test_a_started_run_takes_no_bets():
    with pytest.raises(ConfigError, match=r"already started .*attempt 1"):
        filed(started="attempt 1, 2026-04-17")


def test_a_bet_without_terms_or_outside_its_interval_is_refused():
    with pytest.raises(ConfigError, match="names no terms"):
        bets.file("r", metric="m", by=law(), flops=1e21, terms={}, started=None)
    with pytest.raises(ConfigError, match="outside of its interval"):
        bets.Bet("r", "m", 3.0, 1.0, 2.0, 0.9, 1e21, law(), TERMS)


def test_a_filed_bet_reads_back_and_is_never_overwritten(tmp_path):
    path, bet = Path(tmp_path) / "bet.json", filed()
    bets.write(path, bet)
    assert bets.read(path) == bet
    assert bets.read(path).digest == bet.digest
    with pytest.raises(InputError, match="never edited"):
        bets.write(path, filed(flops=1e22))
    assert bets.read(path) == bet


def test_every_changed_byte_is_noticed(tmp_path):
    path = Path(tmp_path) / "bet.json"
    bets.write(path, filed())
    original = path.read_bytes()
    for place in range(0, len(original), 37):
        changed = bytearray(original)
        changed[place] = ord("7") if changed[place] != ord("7") else ord("8")
        path.write_bytes(bytes(changed))
        with pytest.raises(InputError):
            bets.read(path)
    # A consistent edit of one number with its old hash, and cosmetic space, are edits too.
    better = re.sub(rb'"high":[0-9.]+', b'"high":9.0', original)
    for edited in (better, original.replace(b":", b": ", 1), original[:-1], b"{}", b"\xff\xfe"):
        path.write_bytes(edited)
        with pytest.raises(bets.Tampered):
            bets.read(path)


def test_the_digest_depends_on_every_part():
    digests = {
        filed().digest,
        filed(run="runs/other").digest,
        filed(flops=1.1e21).digest,
        filed(level=0.8).digest,
        filed(terms={**TERMS, "seq": 4096}).digest,
        filed(by=law(Floor(1.5))).digest,
    }
    assert len(digests) == 6


def test_score_counts_only_what_was_comparable():
    wide = law(Floor(1.6, 1.4, 1.7))
    calls = [
        bets.call(filed(), measurement(2.599)),
        bets.call(filed(flops=1e23, at_most=2.252), measurement(2.234)),
        bets.call(filed(flops=1e23), measurement(2.234)),
        bets.call(filed(by=wide), measurement(9.0, seq=1)),
    ]
    score = bets.score(calls)
    assert (score.called, score.hits, score.not_comparable) == (3, 2, 1)
    assert score.hit_rate == pytest.approx(2 / 3)
    assert score.coverage == pytest.approx(1 / 3)
    assert score.mean_signed_error == pytest.approx((2.599 - 2.605 + 2 * (2.234 - 2.2505)) / 3, abs=2e-3)
    assert bets.score([]).mean_signed_error is None
