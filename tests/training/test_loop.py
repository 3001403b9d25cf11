"""Training runs: they learn, resume bit for bit, refuse what would mix two runs, and stop where asked."""

import json
import logging
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmlab.artifacts import Artifact
from lmlab.core.errors import ArtifactError, ConfigError, InputError
from lmlab.models.config import Dense, Grug
from lmlab.training.checkpoint import Checkpoints, complete_steps, load_final
from lmlab.training.loop import Diverged, Result, fit
from lmlab.training.recipe import AdamW, Mix, MuonH, Run

Recipe = Callable[..., Run]
Row = dict[str, float]
WALL_CLOCK = ("elapsed_s", "throughput/tokens_per_s")


class Crash(Exception):
    """As sudden as a crash: raised from a status line."""


def crash_after(step: int) -> Callable[..., None]:
    def status(text: str, done: int | None = None, total: int | None = None) -> None:
        if done == step and "loss" in text:
            raise Crash

    return status


class Ticks:
    """A clock that moves a second at each look, so that every status line is due."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def rows(folder: Path) -> list[Row]:
    """The run's curve without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in WALL_CLOCK} for line in lines]


def timeless(result: Result) -> Result:
    return replace(result, train_seconds=0.0, compile_seconds=0.0, tokens_per_second=0.0)


def crash_and_resume(run: Run, folder: Path, step: int) -> Result:
    with pytest.raises(Crash):
        fit(run, folder, status=crash_after(step), clock=Ticks())
    return fit(run, folder)


def test_a_run_learns_and_says_what_it_did(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(steps=60, optimizer=AdamW(lr=0.03))
    result = fit(run, tmp_path / "run")
    losses = [row["train/loss"] for row in rows(tmp_path / "run") if "train/loss" in row]
    assert losses[0] == pytest.approx(math.log(32), abs=0.1)
    assert result.loss < 0.7 * losses[0]
    assert result.loss == pytest.approx(np.mean(losses[-6:]))
    assert (result.steps, result.tokens) == (60, 60 * 4 * 32)
    assert result.params == run.model.param_count()
    assert result.holdout_macro_bpb is not None
    assert result.holdout_macro_bpb < math.log2(31) / 2  # the uniform guess; a token stands for two bytes


def test_the_same_recipe_gives_the_same_curve(recipe: Recipe, tmp_path: Path) -> None:
    results = [timeless(fit(recipe(), tmp_path / name)) for name in ("a", "b")]
    assert results[0] == results[1]
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


@pytest.mark.parametrize("crashed_at", [7, 10])
def test_resume_equals_uninterrupted(recipe: Recipe, tmp_path: Path, crashed_at: int) -> None:
    """Also where a checkpoint and a reading of the held-out text fall on one step (10)."""
    run = recipe(checkpoint_every_steps=5)
    whole = fit(run, tmp_path / "whole")
    resumed = crash_and_resume(run, tmp_path / "resumed", crashed_at)
    assert timeless(resumed) == timeless(whole)
    assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")
    for a, b in zip(arrays(tmp_path / "whole"), arrays(tmp_path / "resumed"), strict=True):
        assert np.array_equal(a, b)


def arrays(folder: Path) -> list[np.ndarray]:
    from lmlab.training.optim import flatten

    found = Checkpoints(folder).latest()
    assert found is not None
    _, weights, moments = found
    return [*flatten(weights).values(), *flatten(moments).values()]


def test_grug_resumes_with_its_pending_router_bias(recipe: Recipe, tmp_path: Path) -> None:
    model = Grug(
        vocab=32, hidden=16, layers=1, heads=2, kv_heads=1, experts=4, top_k=1,
        expert_width=16, shared_width=16, norm_gate_rank=4,
    )  # fmt: skip
    optimizer = MuonH(lr=0.05, adam_lr=0.01)
    run = recipe(model=model, optimizer=optimizer, steps=6, checkpoint_every_steps=3, validation_every=None)
    whole = fit(run, tmp_path / "whole")
    resumed = crash_and_resume(run, tmp_path / "resumed", 4)
    assert timeless(resumed) == timeless(whole)
    assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")
    logged = rows(tmp_path / "whole")[0].keys()
    assert {"router/entropy", "router/max_over_mean_load", "router/overflow"} <= logged

    config, params = load_final(tmp_path / "whole")
    found = Checkpoints(tmp_path / "whole").latest()
    assert config == model
    assert found is not None
    assert np.array_equal(params["router_bias"], -found[1]["pending_bias"])
    assert np.any(params["router_bias"])


def test_saving_by_the_clock_changes_no_number(recipe: Recipe, tmp_path: Path) -> None:
    never = fit(recipe(checkpoint_every_s=None), tmp_path / "never")
    always = fit(recipe(checkpoint_every_s=0.5), tmp_path / "always", clock=Ticks())
    assert timeless(always) == timeless(never)
    assert rows(tmp_path / "always") == rows(tmp_path / "never")
    assert complete_steps(tmp_path / "always" / "checkpoints") == [11, 12]  # the last two are kept
    assert complete_steps(tmp_path / "never" / "checkpoints") == [12]


def test_a_finished_run_is_not_trained_again(recipe: Recipe, tmp_path: Path) -> None:
    first = fit(recipe(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns
    assert fit(recipe(), tmp_path / "run") == first
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_run_killed_while_it_reads_the_held_out_text_at_the_end_reads_it_again(
    recipe: Recipe, tmp_path: Path
) -> None:
    whole = fit(recipe(), tmp_path / "whole")
    folder = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", folder)
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert "holdout/macro_bpb" in lines[-1]
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]) + '{"step": 12, "hold')
    assert timeless(fit(recipe(), folder)) == timeless(whole)
    assert rows(folder) == rows(tmp_path / "whole")


# -- broken checkpoints ----------------------------------------------------------------------------


def interrupted(run: Run, folder: Path) -> None:
    with pytest.raises(Crash):
        fit(run, folder, status=crash_after(11), clock=Ticks())
    assert complete_steps(folder / "checkpoints") == [5, 10]


def largest_file(folder: Path) -> Path:
    return max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def test_a_broken_newest_checkpoint_is_passed_over_with_a_warning(
    recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = recipe(checkpoint_every_steps=5)
    whole = fit(run, tmp_path / "whole")
    interrupted(run, tmp_path / "run")
    largest_file(tmp_path / "run" / "checkpoints" / "00000010" / "weights").unlink()
    with caplog.at_level(logging.WARNING):
        resumed = fit(run, tmp_path / "run")
    assert "00000010 can't be read: weights/" in caplog.text
    assert timeless(resumed) == timeless(whole)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_a_flipped_byte_in_a_checkpoint_is_found(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=5)
    interrupted(run, tmp_path / "run")
    for step in ("00000005", "00000010"):
        file = largest_file(tmp_path / "run" / "checkpoints" / step / "optimizer")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(ArtifactError, match="none of the 2 checkpoints"):
        fit(run, tmp_path / "run")


def test_when_no_checkpoint_can_be_read_training_does_not_start_over(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=5)
    interrupted(run, tmp_path / "run")
    for step in ("00000005", "00000010"):
        (tmp_path / "run" / "checkpoints" / step / "done.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"none of the 2 checkpoints .* would lose 10 steps"):
        fit(run, tmp_path / "run")


def test_a_half_written_checkpoint_does_not_count(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=5)
    whole = fit(run, tmp_path / "whole")
    interrupted(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "00000010" / "done.json").unlink()
    assert timeless(fit(run, tmp_path / "run")) == timeless(whole)


# -- what a resume accepts -------------------------------------------------------------------------


def test_a_resume_with_another_recipe_is_refused_naming_the_field(recipe: Recipe, tmp_path: Path) -> None:
    interrupted(recipe(checkpoint_every_steps=5), tmp_path / "run")
    wider = Dense(vocab=32, hidden=32, layers=1, heads=2, kv_heads=2, mlp_width=32)
    with pytest.raises(ConfigError, match=r"model\.hidden: 16 -> 32"):
        fit(recipe(checkpoint_every_steps=5, model=wider), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"seed: 0 -> 1"):
        fit(recipe(checkpoint_every_steps=5, seed=1), tmp_path / "run")


def test_saving_and_looking_more_often_is_no_other_recipe(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=5)
    whole = fit(run, tmp_path / "whole")
    interrupted(run, tmp_path / "run")
    resumed = fit(recipe(checkpoint_every_steps=2, validation_every=None), tmp_path / "run")
    assert timeless(resumed) == timeless(whole)


def test_a_field_that_is_new_since_then_is_fine(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=5)
    interrupted(run, tmp_path / "run")
    file = tmp_path / "run" / "recipe.json"
    old = json.loads(file.read_text())
    del old["model"]["rope_theta"], old["schedule"]["final"]
    file.write_text(json.dumps(old))
    fit(run, tmp_path / "run")


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_run_resumes(
    recipe: Recipe, tmp_path: Path, number: signal.Signals
) -> None:
    whole = fit(recipe(), tmp_path / "whole")

    def status(text: str, done: int | None = None, total: int | None = None) -> None:
        if done == 3 and "loss" in text:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt, match="saved at step 3 of 12"):
        fit(recipe(), tmp_path / "run", status=status, clock=Ticks())
    assert complete_steps(tmp_path / "run" / "checkpoints") == [3]
    assert timeless(fit(recipe(), tmp_path / "run")) == timeless(whole)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_loss_that_is_no_number_stops_the_run_naming_the_step(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(checkpoint_every_steps=1, optimizer=AdamW(lr=0.999, weight_decay=1e30, clip=None))
    with pytest.raises(Diverged, match=r"is (nan|inf) at step [2-9] of 12"):
        fit(run, tmp_path / "run")
    # What was saved before is sound: no checkpoint holds the step that failed.
    failed = len(rows(tmp_path / "run")) + 1
    assert failed not in complete_steps(tmp_path / "run" / "checkpoints")


# -- bad input -------------------------------------------------------------------------------------


def test_an_empty_source_is_an_error_naming_it(
    recipe: Recipe, write: Callable[..., Artifact], tmp_path: Path
) -> None:
    short = write("short", {"up": [[1, 2, 3]]})
    with pytest.raises(InputError, match=r"tokens/short@dev/up has 4 tokens, too few for one sequence of 32"):
        fit(recipe(data=Mix({short: 1.0})), tmp_path / "run")


def test_a_store_of_a_larger_vocabulary_is_refused(
    recipe: Recipe, write: Callable[..., Artifact], tmp_path: Path
) -> None:
    large = write("large", {"up": [[1, 2, 3] * 20]}, vocab=100)
    with pytest.raises(ConfigError, match=r"model\.vocab=32, but the token store tokens/large@dev has 100"):
        fit(recipe(data=Mix({large: 1.0})), tmp_path / "run")


def test_a_token_outside_the_vocabulary_is_an_error_with_its_place(
    recipe: Recipe, write: Callable[..., Artifact], tmp_path: Path
) -> None:
    damaged = write("damaged", {"up": [[1, 2, 3, 77] * 20]})
    with pytest.raises(InputError, match=r"tokens/damaged@dev/up has token 77 at position \d+"):
        fit(recipe(data=Mix({damaged: 1.0})), tmp_path / "run")


def test_weights_that_sum_to_zero_are_an_error(store: Artifact) -> None:
    with pytest.raises(ConfigError, match="weights sum to 0"):
        Mix({store: 0.0})
