"""How many tokens a text will be, from a sample that is weighted by bytes, and how sure that is.

Windows are drawn at even distances over a domain's bytes, so a document counts as much as it is long; the
first documents of a file would not do, for what comes first is often of another kind. It reads documents, by
domain; `corpus.estimate_tokens` reads raw files of any kind, before anything is made of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from lmlab.tokens.documents import DocumentFile, read_file
from lmlab.tokens.encode import encode_documents
from lmlab.tokens.fast import Encoder

WINDOW_BYTES, WINDOWS = 4_096, 200
Z95 = 1.96


@dataclass
class Sample:
    """One domain's text as it was seen."""

    documents: int = 0
    size_bytes: int = 0
    windows: list[bytes] = field(default_factory=list)
    distance: int = WINDOW_BYTES
    """Bytes from one window to the next."""


@dataclass(frozen=True)
class Estimate:
    """Tokens of one domain."""

    domain: str
    documents: int
    size_bytes: int
    tokens: int
    """End-of-document ids included."""
    bytes_per_token: float
    error: float
    """Half the 95 % interval of `bytes_per_token`, from how the windows differ; 0 where all was encoded."""
    windows: int
    """How many were encoded, of `WINDOW_BYTES` at most; 0 where all was encoded."""


def sample_windows(files: Iterable[DocumentFile], windows: int = WINDOWS) -> dict[str, Sample]:
    """From `windows` to twice as many windows of each domain, evenly over its bytes; reads every document."""
    samples: dict[str, Sample] = {}
    for document in (document for file in files for document in read_file(file)):
        own, size = samples.setdefault(document.domain, Sample()), len(document.data)
        for start in range(-own.size_bytes % own.distance, size, own.distance):
            window = document.data[start : start + WINDOW_BYTES]
            own.windows.append(window.decode(errors="ignore").encode())
        own.documents, own.size_bytes = own.documents + 1, own.size_bytes + size
        if len(own.windows) >= 2 * windows:  # thinned out, so that the distance fits a text of any size
            own.windows, own.distance = own.windows[::2], own.distance * 2
    return dict(sorted(samples.items()))


def estimate(encoder: Encoder, domain: str, sample: Sample) -> Estimate:
    """What a domain's windows say of all its text."""
    sizes = np.array([len(window) for window in sample.windows])
    counts = np.array([len(ids) for ids in encode_documents(encoder, sample.windows)])
    ratio = float(sizes.sum() / max(1, counts.sum()))
    # A ratio of two sums: its error is that of the residuals.
    spread = float(np.std(sizes - ratio * counts, ddof=1)) if len(sizes) > 1 else math.nan
    error = Z95 * spread / max(1e-9, float(counts.mean()) * math.sqrt(len(sizes)))
    tokens = round(sample.size_bytes / ratio) + sample.documents
    return Estimate(domain, sample.documents, sample.size_bytes, tokens, ratio, error, len(sizes))


def count_tokens(encoder: Encoder, files: Iterable[DocumentFile]) -> list[Estimate]:
    """The same, exactly: every document is encoded."""
    sums: dict[str, np.ndarray] = {}
    for document in (document for file in files for document in read_file(file)):
        (ids,) = encode_documents(encoder, [document.data])
        sums[document.domain] = sums.get(document.domain, 0) + np.array([1, len(document.data), len(ids)])
    return [
        Estimate(domain, documents, size, tokens + documents, size / max(1, tokens), 0.0, 0)
        for domain, (documents, size, tokens) in sorted((name, own.tolist()) for name, own in sums.items())
    ]
