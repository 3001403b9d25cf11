"""From archives to a curated corpus: fetch, extract, curate. Documents have one strict schema throughout."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.corpus.catalogue import (
        Entry as Entry,
        code_only as code_only,
        lookup as lookup,
        names as names,
    )
    from lmlab.corpus.config import Decontamination as Decontamination, Fuzzy as Fuzzy, Holdout as Holdout
    from lmlab.corpus.filtering import (
        filter_documents as filter_documents,
        write_documents as write_documents,
    )
    from lmlab.corpus.registry import (
        Files as Files,
        Slice as Slice,
        Source as Source,
        quickstart_sources as quickstart_sources,
    )
    from lmlab.corpus.steps import (
        Attributes as Attributes,
        Corpus as Corpus,
        Documents as Documents,
        Raw as Raw,
        curate as curate,
        extract as extract,
        fetch as fetch,
    )

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Attributes": ".steps",
        "Corpus": ".steps",
        "Decontamination": ".config",
        "Documents": ".steps",
        "Entry": ".catalogue",
        "Files": ".registry",
        "Fuzzy": ".config",
        "Holdout": ".config",
        "Raw": ".steps",
        "Slice": ".registry",
        "Source": ".registry",
        "code_only": ".catalogue",
        "curate": ".steps",
        "extract": ".steps",
        "fetch": ".steps",
        "filter_documents": ".filtering",
        "lookup": ".catalogue",
        "names": ".catalogue",
        "quickstart_sources": ".registry",
        "write_documents": ".filtering",
    },
)
