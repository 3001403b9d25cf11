"""The step `sample`: real completions over HTTP from a server that is gone afterwards."""

import json

import psutil
import pytest

from lmlab.artifacts import Out
from lmlab.core.errors import ConfigError, StepFailed
from lmlab.serving.steps import Samples, sample
from lmlab.training.steps import Exported

PROMPTS = ("The quick", "Grüße aus", "def main")


def exported(folder) -> Exported:
    return Exported.at(
        folder, name="models/tiny", version="1", params=1, architecture="x", size_bytes=1, tree_sha256="x"
    )


def sampled(folder, place, **options) -> Samples:
    return sample.body(Out.at(place), exported(folder), PROMPTS, max_tokens=12, **options)


@pytest.mark.slow  # starts Python with jax: 5 s
@pytest.mark.parametrize("name", ["grug", "dense"])
def test_samples_are_completions_from_a_server_that_is_gone_afterwards(folders, tmp_path, name):
    result = sampled(folders[name], tmp_path)
    rows = json.loads((tmp_path / "samples.json").read_text())
    assert [row["prompt"] for row in rows] == list(PROMPTS)
    assert {row["endpoint"] for row in rows} == {"/v1/completions"}
    assert (result.requests, result.tokens) == (3, sum(row["tokens"] for row in rows))
    assert result.tokens_per_second > 0
    assert len(rows[1]["logprobs"]) == rows[1]["tokens"]
    assert len(json.loads((tmp_path / "timings.json").read_text())["seconds"]) == 3
    assert not [child for child in psutil.Process().children() if "lmlab.serving.child" in child.cmdline()]


@pytest.mark.slow  # starts Python with jax twice: 10 s
def test_the_same_seed_samples_the_same_bytes_and_another_seed_other_ones(folders, tmp_path):
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        sampled(folders["dense"], tmp_path / place, seed=seed)
    first, again, other = ((tmp_path / place / "samples.json").read_bytes() for place in "abc")
    assert first == again != other


def test_no_prompts_are_refused_before_a_server_starts(folders, tmp_path):
    with pytest.raises(ConfigError, match="prompts is empty"):
        sample.body(Out.at(tmp_path), exported(folders["dense"]), ())


def test_a_folder_that_is_no_model_is_refused_before_a_server_starts(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json"):
        sampled(tmp_path / "model", tmp_path / "out")


@pytest.mark.slow  # starts Python with jax: 4 s
def test_a_request_that_the_server_refuses_fails_the_step_in_the_servers_words(folders, tmp_path):
    with pytest.raises(StepFailed, match=r"400.*max_tokens=5000"):
        sample.body(Out.at(tmp_path), exported(folders["dense"]), ("x",), max_tokens=5000)
    assert not (tmp_path / "samples.json").exists()
