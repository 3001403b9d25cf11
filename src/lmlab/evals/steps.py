"""The evaluation step: bits per byte of a trained model on held-out text, beside its baselines."""

from dataclasses import dataclass

from lmlab.artifacts import Artifact, Out, step
from lmlab.core.errors import ConfigError, InputError
from lmlab.tokens.steps import TokenStore
from lmlab.training.steps import Trained

NGRAMS = {"unigram": 1, "5-gram": 5}


@dataclass(frozen=True)
class Evaluation(Artifact):
    """Bits per byte on held-out text; `scores.json` has them by domain, `documents.parquet` by document."""

    macro_bpb: float
    """Of the main run: mean over domains."""
    micro_bpb: float
    """Of the main run: all bits over all bytes."""
    baselines: dict[str, float]
    """Macro bits per byte of every other column."""


@step(local_files=True)
def evaluate(
    out: Out,
    run: Trained,
    holdout: TokenStore,
    documents: Artifact,
    baselines: tuple[Trained, ...] = (),
    trained_on: tuple[TokenStore, ...] = (),
) -> Evaluation:
    """Score `run`, the `baselines`, zstd and n-grams on every held-out document: same tokens, same bytes.

    `documents` are the texts that `holdout` was tokenized from. The n-grams learn from the tokens of `run`,
    whose stores are `trained_on`; without it they are left out. The end-of-document id is not scored.
    """
    names = column_names([run, *baselines])
    from lmlab.evals.columns import model_column, ngram_column, zstd_column
    from lmlab.evals.heldout import read_held_out
    from lmlab.evals.table import macro_bpb, micro_bpb, write_scores
    from lmlab.tokens.store import open_store
    from lmlab.training.data import seen_tokens

    store = open_store(holdout.path)
    out.status("zstd -19 of each document")
    held_out = read_held_out(documents.path, store)
    columns = [
        model_column(name, trained.path, store, out.status)
        for name, trained in zip(names, [run, *baselines], strict=True)
    ]
    columns.append(zstd_column(held_out))
    seen = list(seen_tokens(run.path, trained_on)) if trained_on else []
    for name, order in NGRAMS.items() if trained_on else ():
        out.status(f"{name} over the tokens of {names[0]}")
        columns.append(ngram_column(name, order, seen, store))
    for column in columns:
        _check_finite(column.name, column.nats.sum())
    write_scores(out.path, held_out, columns)
    return Evaluation(
        macro_bpb=macro_bpb(held_out, columns[0]),
        micro_bpb=micro_bpb(held_out, columns[0]),
        baselines={column.name: macro_bpb(held_out, column) for column in columns[1:]},
    )


def column_names(runs: list[Trained]) -> list[str]:
    """The last part of each run's name ("grug" of "runs/grug"); ConfigError unless all columns differ."""
    names = [run.name.rsplit("/", 1)[-1] for run in runs]
    taken = [*names, "zstd -19", *NGRAMS]
    if len(set(taken)) < len(taken):
        raise ConfigError(
            f"the runs to compare are named {', '.join(run.name for run in runs)}: the last parts of these "
            "name the columns of the table, beside zstd and n-grams, so they must differ. Rename one run."
        )
    return names


def _check_finite(name: str, nats: float) -> None:
    if not 0 <= nats < float("inf"):
        raise InputError(
            f"{name} gives the held-out text {nats} nats, so its weights are broken. Look at its run's loss."
        )
