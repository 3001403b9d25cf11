"""Training documents that repeat held-out text are flagged and attributed; what many share is not."""

import numpy as np
import pyarrow as pa
import pytest
from sample_archives import prose

from lmlab.core.errors import ConfigError
from lmlab.corpus import Decontamination
from lmlab.corpus.decontaminate import RunsTask, find_hits, flag, heldout_runs
from lmlab.dataflow import write_parquet
from lmlab.storage import Path

LABEL = "Licensed under the terms of the example license, without warranty of any kind, express or implied."

SETTINGS = Decontamination()


@pytest.fixture
def flagged(tmp_path):
    """(row, held-out row, reason) of the training texts that repeat one of the held-out texts."""

    def run(training, heldout, settings=SETTINGS):
        texts = pa.array([*training, *heldout], pa.large_string())
        part = Path(tmp_path / "part.parquet")
        write_parquet(part, pa.table({"id": [str(i) for i in range(len(texts))], "text": texts}))
        rows = np.arange(len(texts))
        runs = heldout_runs(RunsTask(part, rows[len(training) :], settings))
        known, first = np.unique(runs.grams, return_index=True)
        np.save(tmp_path / "known.npy", known)
        task = RunsTask(part, rows[: len(training)], settings, Path(tmp_path / "known.npy"))
        (flags,) = flag([find_hits(task)], runs.document[first], settings)
        return [tuple(found) for found in flags]

    return run


def test_planted_paragraph_is_flagged_and_attributed(flagged):
    secret = prose(7, 30)
    training = [prose(i, 200) for i in range(20)]
    training[11] = f"{prose(99, 100)}\n\n{secret.upper().replace(' ', ',  ')}\n\n{prose(98, 100)}"
    held = [prose(50, 100), f"{prose(51, 60)}\n\n{secret}\n\n{prose(52, 60)}", prose(53, 100)]
    ((row, source, reason),) = flagged(training, held)
    assert (row, source) == (11, 1)
    assert reason == "1.00 of the 18 runs of paragraph 3"


def test_paragraph_of_thirteen_words_is_enough(flagged):
    secret = prose(7, 13)
    ((row, source, _),) = flagged([f"{prose(1, 90)}\n\n{secret}"], [f"{secret}\n\n{prose(2, 90)}"])
    assert (row, source) == (0, 0)


def test_common_label_is_not_flagged(flagged):
    training = [f"{LABEL}\n\n{prose(i, 100)}" for i in range(20)]
    held = [f"{LABEL}\n\n{prose(60, 100)}"]
    assert flagged(training, held) == []
    # The same label in few documents is no boilerplate.
    assert [row for row, _, _ in flagged(training[:3], held)] == [0, 1, 2]


def test_paragraph_that_shares_less_than_half_is_not_flagged(flagged):
    secret = prose(7, 20)
    assert flagged([secret + " " + prose(1, 40)], [secret + " " + prose(2, 40)]) == []


def test_short_document_is_compared_whole(flagged):
    assert [row for row, _, _ in flagged(["Yes, I do!", "no i do not"], ["yes i do"])] == [0]
    assert flagged(["yes"], ["yes"]) == []  # fewer than three words say nothing


def test_text_without_spaces_is_compared_by_characters(flagged):
    secret = "人人生而自由在尊严和权利上一律平等他们赋有理性和良心"
    assert [row for row, _, _ in flagged([secret, secret[::-1]], [secret])] == [0]


def test_held_out_text_without_any_run_flags_nothing(flagged):
    assert flagged([prose(1, 100)], ["", "one two"]) == []


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="overlap=0"):
        Decontamination(overlap=0)
