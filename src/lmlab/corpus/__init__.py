"""From archives to a curated corpus: fetch, extract, curate. Documents have one strict schema throughout."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.corpus.acquisition_steps import ingest as ingest
    from lmlab.corpus.catalogue import (
        Entry as Entry,
        code_only as code_only,
        lookup as lookup,
        names as names,
    )
    from lmlab.corpus.config import (
        Decontamination as Decontamination,
        Drop as Drop,
        Fuzzy as Fuzzy,
        Holdout as Holdout,
        Keep as Keep,
        Normalization as Normalization,
        RemoveSpans as RemoveSpans,
    )
    from lmlab.corpus.dedup_steps import (
        NearDuplicates as NearDuplicates,
        Paragraphs as Paragraphs,
        Repeats as Repeats,
        decontaminate as decontaminate,
        near_duplicates as near_duplicates,
        normalize as normalize,
        repeated_paragraphs as repeated_paragraphs,
        replay as replay,
        select as select,
        signatures as signatures,
    )
    from lmlab.corpus.estimate import (
        Counted as Counted,
        Estimate as Estimate,
        diff_counts as diff_counts,
        estimate_tokens as estimate_tokens,
        read_counts as read_counts,
        write_counts as write_counts,
    )
    from lmlab.corpus.filtering import (
        filter_documents as filter_documents,
        write_documents as write_documents,
    )
    from lmlab.corpus.html import Page as Page, extract_text as extract_text
    from lmlab.corpus.llm_extract import Extractor as Extractor, extract_pages as extract_pages
    from lmlab.corpus.manifest import Manifest as Manifest, fingerprint as fingerprint
    from lmlab.corpus.quality_steps import (
        Buckets as Buckets,
        Embeddings as Embeddings,
        Labels as Labels,
        QualityModel as QualityModel,
        Topics as Topics,
        buckets as buckets,
        embed as embed,
        label as label,
        languages as languages,
        quality as quality,
        redact as redact,
        registers as registers,
        topics as topics,
        train_quality as train_quality,
    )
    from lmlab.corpus.registry import (
        Files as Files,
        Slice as Slice,
        Source as Source,
        quickstart_sources as quickstart_sources,
    )
    from lmlab.corpus.release import (
        Release as Release,
        Worklist as Worklist,
        plan_domain as plan_domain,
    )
    from lmlab.corpus.steps import (
        Attributes as Attributes,
        Corpus as Corpus,
        Documents as Documents,
        Raw as Raw,
        curate as curate,
        extract as extract,
        fan_out as fan_out,
        fetch as fetch,
    )
    from lmlab.corpus.testbed import ARMS as ARMS, Arm as Arm, arms as arms
    from lmlab.corpus.traits.config import Limit as Limit, NGrams as NGrams

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "ARMS": ".testbed",
        "Arm": ".testbed",
        "Attributes": ".steps",
        "Buckets": ".quality_steps",
        "Corpus": ".steps",
        "Counted": ".estimate",
        "Decontamination": ".config",
        "Documents": ".steps",
        "Drop": ".config",
        "Embeddings": ".quality_steps",
        "Entry": ".catalogue",
        "Estimate": ".estimate",
        "Extractor": ".llm_extract",
        "Files": ".registry",
        "Fuzzy": ".config",
        "Holdout": ".config",
        "Keep": ".config",
        "Labels": ".quality_steps",
        "Limit": ".traits.config",
        "Manifest": ".manifest",
        "NGrams": ".traits.config",
        "NearDuplicates": ".dedup_steps",
        "Normalization": ".config",
        "Page": ".html",
        "Paragraphs": ".dedup_steps",
        "QualityModel": ".quality_steps",
        "Raw": ".steps",
        "Release": ".release",
        "RemoveSpans": ".config",
        "Repeats": ".dedup_steps",
        "Slice": ".registry",
        "Source": ".registry",
        "Topics": ".quality_steps",
        "Worklist": ".release",
        "arms": ".testbed",
        "buckets": ".quality_steps",
        "code_only": ".catalogue",
        "curate": ".steps",
        "decontaminate": ".dedup_steps",
        "diff_counts": ".estimate",
        "embed": ".quality_steps",
        "estimate_tokens": ".estimate",
        "extract": ".steps",
        "extract_pages": ".llm_extract",
        "extract_text": ".html",
        "fan_out": ".steps",
        "fetch": ".steps",
        "filter_documents": ".filtering",
        "fingerprint": ".manifest",
        "ingest": ".acquisition_steps",
        "label": ".quality_steps",
        "languages": ".quality_steps",
        "lookup": ".catalogue",
        "names": ".catalogue",
        "near_duplicates": ".dedup_steps",
        "normalize": ".dedup_steps",
        "plan_domain": ".release",
        "quality": ".quality_steps",
        "quickstart_sources": ".registry",
        "read_counts": ".estimate",
        "redact": ".quality_steps",
        "registers": ".quality_steps",
        "repeated_paragraphs": ".dedup_steps",
        "replay": ".dedup_steps",
        "select": ".dedup_steps",
        "signatures": ".dedup_steps",
        "topics": ".quality_steps",
        "train_quality": ".quality_steps",
        "write_counts": ".estimate",
        "write_documents": ".filtering",
    },
)
