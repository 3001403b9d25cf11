"""The quick start, small: the whole chain from text to report through its own `build()`."""

import json
import time

import pytest

from quickstart import EXPERIMENT, SMALL, VERSION, folder, lmlab, record, run_small

SAME = ("raw", "documents", "corpus", "tokenizers", "tokens", "ladder", "bets", "calls", "evals", "models")
NAMES = (*(f"{kind}/quickstart" for kind in (*SAME, "samples", "reports")), "runs/grug", "runs/dense")


@pytest.mark.timeout(400)
def test_the_whole_chain_is_built_and_the_ending_says_where_to_look(small_quickstart):
    built = small_quickstart.first.stdout
    assert all((folder(small_quickstart.root, name) / ".artifact.json").exists() for name in NAMES)
    assert "report.html" in built
    assert "\x1b" not in built


def test_the_second_run_executes_nothing_within_five_seconds(small_quickstart):
    started = time.monotonic()
    again = run_small(small_quickstart.root)
    assert time.monotonic() - started < 5
    assert "started" not in again.stdout
    assert "report.html" in again.stdout


def test_the_bet_was_committed_before_its_run_started(small_quickstart):
    bet = record(small_quickstart.root, "bets/quickstart")
    run = record(small_quickstart.root, "runs/grug")
    assert bet["finished"] <= run["started"]
    assert record(small_quickstart.root, "calls/quickstart")["result"]["outcome"] in ("hit", "miss")


def test_every_artifact_verifies_and_shows_itself(small_quickstart):
    listed = {row["address"] for row in json.loads(lmlab("ls", "--json", root=small_quickstart.root).stdout)}
    # The pages of the docs may be building more beside them.
    for address in (f"{name}@{VERSION}" for name in NAMES):
        assert address in listed
        lmlab("verify", address, root=small_quickstart.root)
        shown = json.loads(lmlab("show", address, "--json", root=small_quickstart.root).stdout)
        assert shown["address"] == address


def test_the_report_descends_from_the_raw_archives(small_quickstart):
    text = lmlab("lineage", "reports/quickstart@2026.11.30", root=small_quickstart.root).stdout
    assert all(name in text for name in NAMES)


def test_the_curve_the_bet_and_the_scores_tell_of_one_run(small_quickstart):
    root = small_quickstart.root
    lines = (folder(root, "runs/grug") / "metrics.jsonl").read_text().splitlines()
    last = [json.loads(line) for line in lines][-1]
    result = record(root, "runs/grug")["result"]
    assert last["holdout/macro_bpb"] == result["holdout_macro_bpb"]
    assert record(root, "calls/quickstart")["result"]["measured"] == result["holdout_macro_bpb"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("--stepz", "5"), "stepz"),
        (("--steps", "many"), "steps"),
        (("--source", "wikipedia"), "pypi+npm, pypi, stdlib"),
        (("--hidden", "100"), "hidden=100"),
        (("--steps", "0"), "nothing to train on"),
    ],
)
def test_a_wrong_field_is_one_line_and_exit_2(tmp_path, fields, message):
    done = lmlab("run", str(EXPERIMENT), "--", *SMALL, *fields, root=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
