"""What a model is worth on text it has not seen: bits per byte by domain, beside honest baselines."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.evals.bpb import score_source as score_source
    from lmlab.evals.ngrams import NgramModel as NgramModel, train_ngrams as train_ngrams
    from lmlab.evals.steps import Evaluation as Evaluation, evaluate as evaluate

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Evaluation": ".steps",
        "NgramModel": ".ngrams",
        "evaluate": ".steps",
        "score_source": ".bpb",
        "train_ngrams": ".ngrams",
    },
)
