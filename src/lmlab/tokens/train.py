"""Train a byte-level BPE on a sample that is balanced over domains.

The sample decides what a tokenizer is good at: drawn in proportion to bytes, a corpus that is mostly code
leaves other languages and markup with few merges. So a domain gets a share in proportion to bytes**alpha;
on the quick start's 8 domains, 8,192 ids, tokens per held-out byte (macro) are 0.366, 0.365, 0.366 and 0.368
at alpha 0, 0.3, 0.5 and 0.7.
"""

from collections.abc import Iterator, Mapping

import tokenizers
from tokenizers import pre_tokenizers, trainers

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.documents import read_documents
from lmlab.tokens.tokenizer import END_OF_TEXT, byte_level_bpe

DOCUMENT_BYTES = 200_000  # of one document at most, so that a single book can't fill its domain's share


def domain_budgets(available: Mapping[str, int], total: int, alpha: float) -> dict[str, int]:
    """Share `total` bytes over domains in proportion to bytes**alpha, none getting more than it has.

    >>> domain_budgets({"code": 900, "prose": 100, "svg": 10}, total=210, alpha=0.0)
    {'code': 100, 'prose': 100, 'svg': 10}
    """
    budgets: dict[str, int] = {}
    open_domains = dict(sorted(available.items()))
    while open_domains:
        left = total - sum(budgets.values())
        weight = sum(size**alpha for size in open_domains.values())
        shares = {domain: int(left * size**alpha / weight) for domain, size in open_domains.items()}
        full = [domain for domain, share in shares.items() if share >= open_domains[domain]]
        if not full:
            return {domain: (budgets | shares)[domain] for domain in sorted(available)}
        budgets |= {domain: open_domains.pop(domain) for domain in full}
    return dict(sorted(budgets.items()))


def balanced_sample(folder: Path, sample_bytes: int, alpha: float) -> Iterator[str]:
    """Texts of about `sample_bytes` in all. Documents are sorted by the hash of their text, so the first ones
    of each domain are a random sample, and always the same one."""
    available: dict[str, int] = {}
    for document in read_documents(folder):
        size = min(len(document.data), DOCUMENT_BYTES)
        available[document.domain] = available.get(document.domain, 0) + size
    left = domain_budgets(available, sample_bytes, alpha)
    for document in read_documents(folder):
        take = min(len(document.data), DOCUMENT_BYTES, left[document.domain])
        if take > 0:
            left[document.domain] -= take
            yield document.data[:take].decode(errors="ignore")
        if not any(left.values()):
            return


def train_bpe(texts: Iterator[str], vocab: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of exactly `vocab` ids (0 ends a document); the same texts give the same tokenizer."""
    tokenizer = byte_level_bpe()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if (reached := tokenizer.get_vocab_size()) < vocab:
        raise InputError(
            f"the sample has merges for a vocabulary of {reached:,} only, not {vocab:,}: the rest would be "
            "embedding rows that no text reaches. Ask for a smaller vocab or give more text."
        )
    return tokenizer
