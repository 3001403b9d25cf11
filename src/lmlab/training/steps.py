"""The steps of training: one run, a ladder of small runs, and a trained model as a Hugging Face folder."""

from dataclasses import asdict, dataclass, replace

from lmlab.artifacts import Artifact, Out, step
from lmlab.core.errors import ConfigError
from lmlab.models.config import Model
from lmlab.tokens.steps import Tokenizer
from lmlab.training.recipe import MuonH, Run

# What `sized` derives from the width; a rung takes these from it and everything else from the run.
SIZES = (
    *("hidden", "layers", "heads", "kv_heads", "head_dim"),
    *("mlp_width", "expert_width", "shared_width", "norm_gate_rank"),
)


@dataclass(frozen=True)
class Trained(Artifact):
    """A finished run; its folder holds the recipe, the curve and the last checkpoints."""

    steps: int
    """Steps of the run."""
    tokens: int
    """Tokens read."""
    params: int
    """Parameters, all experts included."""
    active_params: int
    """Parameters that one token touches."""
    flops: float
    """Forward and backward FLOPs of all tokens, LM head included, without recomputation."""
    loss: float
    """Mean training loss of the last tenth of the steps, nats per token."""
    holdout_macro_bpb: float | None
    """Mean over the domains of the held-out bits per byte; None without validation."""
    train_seconds: float
    """Seconds of training over all attempts; compiling and validation not included."""
    compile_seconds: float
    """Seconds of compiling over all attempts."""
    tokens_per_second: float
    """Tokens over `train_seconds`."""
    model: Model
    """The architecture."""


@dataclass(frozen=True)
class Rung:
    """One model of a ladder."""

    hidden: int
    """Width of the model."""
    params: int
    """Parameters, all experts included."""
    active_params: int
    """Parameters that one token touches."""
    tokens: int
    """Tokens read."""
    flops: float
    """Training FLOPs, LM head included, as for `Trained`."""
    holdout_macro_bpb: float
    """Mean over the domains of the held-out bits per byte."""
    train_seconds: float
    """Seconds of training."""


@dataclass(frozen=True)
class Ladder(Artifact):
    """Small models trained alike, from which the loss of a larger one is predicted."""

    rungs: tuple[Rung, ...]
    """From the smallest to the largest."""


@dataclass(frozen=True)
class Exported(Artifact):
    """A model as a Hugging Face folder with a manifest of sha256."""

    params: int
    """Parameters in the safetensors file."""
    architecture: str
    """Name in `config.json`."""
    size_bytes: int
    """All files together."""
    tree_sha256: str
    """One digest of the whole folder."""


@step(resumes=True, local_files=True)
def train(out: Out, run: Run) -> Trained:
    """Train a model; the same step goes on from its newest checkpoint when it was stopped."""
    from lmlab.training.loop import fit

    return Trained(**asdict(fit(run, out.path, status=out.status)), model=run.model)


def rungs_of(run: Run, hidden: tuple[int, ...], steps: tuple[int, ...] | None = None) -> list[Run]:
    """The recipes of a ladder: `run` at other widths, its optimizer sized for each."""
    if len(hidden) < 2 or list(hidden) != sorted(set(hidden)):
        raise ConfigError(
            f"ladder: hidden={hidden} should be two or more widths, ascending, to show a trend."
        )
    if steps is not None and len(steps) != len(hidden):
        raise ConfigError(
            f"ladder: {len(steps)} steps for {len(hidden)} widths. Give one number for each width."
        )
    if run.validation is None:
        raise ConfigError(
            "ladder: run.validation is None, so the rungs could not be compared. Give held-out text."
        )
    lengths = steps or tuple(max(1, round(run.steps * width / run.model.hidden)) for width in hidden)
    return [_rung(run, width, length) for width, length in zip(hidden, lengths, strict=True)]


@step(resumes=True, local_files=True, check=rungs_of)
def ladder(out: Out, run: Run, hidden: tuple[int, ...], steps: tuple[int, ...] | None = None) -> Ladder:
    """Train `run` at smaller widths, one after the other, on the same text and tokenizer.

    By default a rung takes steps in proportion to its width, so that compute grows with the cube of the width
    and the ladder costs a small part of the run. Rungs that are finished are not trained again.
    """
    from lmlab.training.loop import fit

    recipes = rungs_of(run, hidden, steps)
    rungs = []
    for number, recipe in enumerate(recipes):
        width = recipe.model.hidden

        def status(text: str, done: int | None = None, total: int | None = None, place: int = number) -> None:
            out.status(f"rung {place + 1} of {len(recipes)}: {text}", done, total)

        result = fit(recipe, out.path / "rungs" / f"{number}-{width}", status=status)
        assert result.holdout_macro_bpb is not None
        kept = ("params", "active_params", "tokens", "flops", "holdout_macro_bpb", "train_seconds")
        rungs.append(Rung(hidden=width, **{name: getattr(result, name) for name in kept}))
    return Ladder(rungs=tuple(rungs))


@step(local_files=True)
def export(out: Out, run: Trained, tokenizer: Tokenizer) -> Exported:
    """Write a trained model as a Hugging Face folder, the pending router bias applied."""
    from lmlab.models.hf import export_folder
    from lmlab.training.checkpoint import load_final

    config, params = load_final(run.path)
    manifest = export_folder(config, params, tokenizer.path, out.path)
    return Exported(
        params=config.param_count(),
        architecture=manifest.architecture,
        size_bytes=manifest.size_bytes,
        tree_sha256=manifest.tree_sha256,
    )


def _rung(run: Run, hidden: int, steps: int) -> Run:
    model = _at_width(run.model, hidden)
    smaller = replace(run, model=model, steps=steps, validation_every=None)
    if not isinstance(run.optimizer, MuonH):
        return smaller
    # Rates relative to what `sized` gives the run, which may have been tuned by hand from there.
    here, there = (MuonH.sized(r.model.hidden, r.tokens, r.tokens_per_step) for r in (smaller, run))
    scaled = replace(
        run.optimizer,
        lr=min(run.optimizer.lr * here.lr / there.lr, 0.1),
        adam_lr=min(run.optimizer.adam_lr * here.adam_lr / there.adam_lr, 0.1),
        beta2=here.beta2,
    )
    return replace(smaller, optimizer=scaled)


def _at_width(model: Model, hidden: int) -> Model:
    """The same architecture at another width: sizes by the rules of `sized`, all other fields kept."""
    sized = type(model).sized(hidden, vocab=model.vocab)
    shape = {name: getattr(sized, name) for name in SIZES if hasattr(sized, name)}
    return replace(model, **shape)
