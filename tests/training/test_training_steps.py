"""The steps: train, ladder, export."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import ConfigError
from lmlab.models.config import Dense, Grug
from lmlab.models.hf import load_folder
from lmlab.storage import Path as StoragePath
from lmlab.tokens.steps import Tokenizer
from lmlab.tokens.tokenizer import TRAINED, Loaded, save_tokenizer
from lmlab.tokens.train import train_bpe
from lmlab.training.checkpoint import load_final
from lmlab.training.optim import flatten
from lmlab.training.recipe import AdamW, Mix, MuonH, Run
from lmlab.training.steps import Ladder, Trained, export, ladder, rungs_of, train

Recipe = Callable[..., Run]


def test_train_returns_what_the_run_measured(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(steps=4)
    statuses: list[str] = []
    out = Out.at(tmp_path / "run", name="runs/test", version="dev")
    object.__setattr__(out._attempt, "report", lambda text, done, total: statuses.append(text))
    trained = train.body(out, run)
    assert isinstance(trained, Trained)
    assert trained.model == run.model
    assert trained.tokens == run.tokens
    assert trained.compile_seconds > 0
    recipe_file = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe_file["data"]["stores"] == {"tokens/train@dev": 1.0}
    assert recipe_file["validation"] == "tokens/holdout@dev"
    assert statuses[0].startswith("compiling")


def test_a_ladder_trains_each_width_once_and_resumes_between_rungs(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(model=Dense.sized(128, vocab=32), steps=8)
    out = Out.at(tmp_path / "ladder", name="ladder/test", version="dev")

    class Crash(Exception):
        pass

    def crash(text: str, done: float | None, total: float | None) -> None:
        if text.startswith("rung 2"):
            raise Crash

    object.__setattr__(out._attempt, "report", crash)
    with pytest.raises(Crash):
        ladder.body(out, run, (32, 64))
    first = tmp_path / "ladder" / "rungs" / "0-32" / "metrics.jsonl"
    written = first.stat().st_mtime_ns
    found = ladder.body(Out.at(tmp_path / "ladder", name="ladder/test"), run, (32, 64))
    assert isinstance(found, Ladder)
    assert first.stat().st_mtime_ns == written
    assert [(rung.hidden, rung.tokens) for rung in found.rungs] == [(32, 2 * 128), (64, 4 * 128)]
    assert found.rungs[0].flops < found.rungs[1].flops
    assert all(rung.holdout_macro_bpb > 0 for rung in found.rungs)


def test_an_exported_model_is_the_trained_one(
    recipe: Recipe, write: Callable[..., Artifact], tmp_path: Path
) -> None:
    tokenizer = train_bpe(iter([text for _, text in sorted(topics.items())][:3]), 300)
    folder = StoragePath(tmp_path / "tokenizer")
    save_tokenizer(Loaded(tokenizer, TRAINED), folder)
    text = [int(i) for i in tokenizer.encode("a b c d e " * 30).ids]
    store = write("text", {"up": [text] * 3}, vocab=300)
    run = recipe(model=Dense.sized(32, vocab=300), data=Mix({store: 1.0}), validation=None, steps=2)
    result = train.body(Out.at(tmp_path / "run"), run)
    trained = Trained.at(
        tmp_path / "run", name="runs/test", **{f.name: getattr(result, f.name) for f in fields(Trained)}
    )
    assert trained.holdout_macro_bpb is None
    made = export.body(Out.at(tmp_path / "hf"), trained, Tokenizer.at(folder, vocab=300, eos_id=0))
    assert made.architecture == "LlamaForCausalLM"
    assert made.params == run.model.param_count()
    loaded = load_folder(tmp_path / "hf")
    _, params = load_final(tmp_path / "run")
    for path, array in flatten(params).items():
        assert np.array_equal(flatten(loaded[1])[path], array), path


def test_rungs_keep_the_architecture_and_scale_the_rates(recipe: Recipe) -> None:
    model = replace(Grug.sized(256, vocab=32, experts=16, top_k=4), qk_mult=1.1, capacity_factor=2.0)
    optimizer = MuonH(lr=0.02, adam_lr=0.004)
    small, large = rungs_of(recipe(model=model, optimizer=optimizer, steps=400), (64, 128), None)
    assert isinstance(small.model, Grug)
    assert (small.model.experts, small.model.top_k, small.model.qk_mult) == (16, 4, 1.1)
    assert small.model.capacity_factor == 2.0
    assert (small.steps, large.steps) == (100, 200)
    # Smaller models on fewer tokens bear, and in fewer steps need, larger rates.
    assert small.optimizer.lr > large.optimizer.lr > 0.02
    assert small.optimizer.adam_lr > large.optimizer.adam_lr > 0.004
    assert small.optimizer.momentum == optimizer.momentum


@pytest.mark.parametrize(
    ("hidden", "steps", "message"),
    [
        ((64,), None, "two or more widths"),
        ((64, 32), None, "ascending"),
        ((16, 32), (5,), "1 steps for 2 widths"),
    ],
)
def test_a_ladder_that_shows_no_trend_is_refused(
    recipe: Recipe, hidden: tuple[int, ...], steps: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rungs_of(recipe(), hidden, steps)


def test_a_ladder_without_held_out_text_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="validation is None"):
        rungs_of(recipe(validation=None), (16, 32), None)


def test_a_run_is_described_without_jax(recipe: Recipe, store: Artifact) -> None:
    """`lmlab plan` reads recipes; 2 s of jax would be most of its time."""
    code = "import sys, lmlab.training.steps; print('jax' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_a_dense_rung_keeps_its_optimizer(recipe: Recipe) -> None:
    run = recipe(model=Dense.sized(64, vocab=32), optimizer=AdamW(lr=0.003))
    assert all(rung.optimizer == run.optimizer for rung in rungs_of(run, (32, 64), None))
