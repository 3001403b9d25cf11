"""From archives to a curated corpus: fetch, extract, curate. Documents have one strict schema throughout."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Corpus": ".steps",
        "Decontamination": ".config",
        "Documents": ".steps",
        "Fuzzy": ".config",
        "Holdout": ".config",
        "Raw": ".steps",
        "Slice": ".registry",
        "Source": ".registry",
        "curate": ".steps",
        "extract": ".steps",
        "fetch": ".steps",
        "quickstart_sources": ".registry",
    },
)
