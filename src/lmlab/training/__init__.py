"""Training: recipes, data order, optimizers, the loop, checkpoints, and the steps over them."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "AdamW": ".recipe",
        "Checkpoints": ".checkpoint",
        "Exported": ".steps",
        "Ladder": ".steps",
        "Mix": ".recipe",
        "MuonH": ".recipe",
        "Run": ".recipe",
        "Rung": ".steps",
        "Schedule": ".recipe",
        "Trained": ".steps",
        "export": ".steps",
        "fit": ".loop",
        "ladder": ".steps",
        "load_final": ".checkpoint",
        "seen_tokens": ".data",
        "train": ".steps",
    },
)
