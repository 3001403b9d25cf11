"""lmlab, an open lab for foundation models. Experiments write `from lmlab import …`; names load on use."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.artifacts import (
        Artifact as Artifact,
        Out as Out,
        RunOnly as RunOnly,
        adopt as adopt,
        built as built,
        grid as grid,
        step as step,
        sweep as sweep,
    )
    from lmlab.cli.experiment import experiment as experiment
    from lmlab.core.resources import Resources as Resources
    from lmlab.corpus import Fuzzy as Fuzzy, Holdout as Holdout
    from lmlab.corpus.registry import quickstart_sources as quickstart_sources
    from lmlab.corpus.steps import curate as curate, extract as extract, fetch as fetch
    from lmlab.evals.steps import evaluate as evaluate
    from lmlab.models.config import Dense as Dense, Grug as Grug
    from lmlab.reports.steps import report as report
    from lmlab.science.steps import call_bet as call_bet, file_bet as file_bet
    from lmlab.serving.steps import sample as sample
    from lmlab.tokens.steps import tokenize as tokenize, train_tokenizer as train_tokenizer
    from lmlab.training.recipe import (
        AdamW as AdamW,
        Mix as Mix,
        MuonH as MuonH,
        Run as Run,
        Schedule as Schedule,
    )
    from lmlab.training.steps import export as export, ladder as ladder, train as train

NAMES = {
    "Artifact": "artifacts",
    "Dense": "models.config",
    "Fuzzy": "corpus",
    "Grug": "models.config",
    "Holdout": "corpus",
    "Mix": "training.recipe",
    "MuonH": "training.recipe",
    "AdamW": "training.recipe",
    "Out": "artifacts",
    "Resources": "core.resources",
    "Run": "training.recipe",
    "RunOnly": "artifacts",
    "Schedule": "training.recipe",
    "adopt": "artifacts",
    "built": "artifacts",
    "call_bet": "science.steps",
    "curate": "corpus.steps",
    "evaluate": "evals.steps",
    "experiment": "cli.experiment",
    "export": "training.steps",
    "extract": "corpus.steps",
    "fetch": "corpus.steps",
    "file_bet": "science.steps",
    "grid": "artifacts",
    "ladder": "training.steps",
    "quickstart_sources": "corpus.registry",
    "report": "reports.steps",
    "sample": "serving.steps",
    "step": "artifacts",
    "sweep": "artifacts",
    "tokenize": "tokens.steps",
    "train": "training.steps",
    "train_tokenizer": "tokens.steps",
}

__getattr__, __dir__, __all__ = exports(__name__, {name: f".{module}" for name, module in NAMES.items()})
