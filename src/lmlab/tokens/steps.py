"""The steps of tokens: documents to a tokenizer, documents and a tokenizer to a token store."""

from dataclasses import dataclass

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.core.errors import ConfigError


@dataclass(frozen=True)
class Tokenizer(Artifact):
    """A tokenizer folder that `tokenizers` and `transformers` read."""

    vocab: int
    """Number of ids; a model needs as many embedding rows."""
    eos_id: int
    """The id that follows every document in a token store."""


@dataclass(frozen=True)
class TokenStore(Artifact):
    """Documents as token ids, by domain; `lmlab.tokens.open_store` reads it."""

    tokens: int
    """Ids in all, one end-of-document id for each document included."""
    documents: int
    """Documents in all."""
    size_bytes: int
    """UTF-8 bytes of the documents' text."""
    vocab: int
    """Number of ids of the tokenizer."""
    eos_id: int
    """The id that follows every document."""
    domains: tuple[str, ...]
    """Names of the domains, sorted."""


def _check_sizes(vocab: int, sample_bytes: int, alpha: float, **_others: object) -> None:
    if not 257 <= vocab <= 1 << 20:
        raise ConfigError(
            f"vocab={vocab} is outside 257 to 1,048,576 (bytes and the end-of-document id need 257). "
            "Choose for example 8192."
        )
    if sample_bytes <= 0 or not 0 <= alpha <= 1:
        raise ConfigError(
            f"sample_bytes={sample_bytes}, alpha={alpha}: the sample needs a size above 0, and alpha lies "
            "between 0 (every domain the same share) and 1 (shares in proportion to bytes)."
        )


@step(local_files=True, check=_check_sizes)
def train_tokenizer(
    out: Out, documents: Artifact, vocab: int = 8192, sample_bytes: int = 16_000_000, alpha: float = 0.3
) -> Tokenizer:
    """Train a byte-level BPE of `vocab` ids on `sample_bytes` of text, each domain's share ~ bytes**alpha."""
    from lmlab.tokens.tokenizer import end_of_text_id, save_tokenizer
    from lmlab.tokens.train import balanced_sample, train_bpe

    out.status(f"training {vocab:,} ids on about {sample_bytes / 1e6:.0f} MB")
    trained = train_bpe(balanced_sample(documents.path, sample_bytes, alpha), vocab)
    save_tokenizer(trained, out.path)
    return Tokenizer(vocab=trained.get_vocab_size(), eos_id=end_of_text_id(trained))


@step(local_files=True)
def tokenize(out: Out, documents: Artifact, tokenizer: Tokenizer, workers: RunOnly[int] = 2) -> TokenStore:
    """Encode every document, in order, into a token store sharded by domain; `workers` are threads."""
    from lmlab.tokens.tokenizer import end_of_text_id, load_tokenizer
    from lmlab.tokens.write import write_store

    loaded = load_tokenizer(tokenizer.path)
    ledger = write_store(
        out.path,
        documents.path,
        loaded,
        eos_id=end_of_text_id(loaded),
        address=tokenizer.address,
        workers=workers,
        status=out.status,
    )
    return TokenStore(
        tokens=sum(shard.tokens for shard in ledger.shards),
        documents=sum(shard.documents for shard in ledger.shards),
        size_bytes=sum(shard.bytes for shard in ledger.shards),
        vocab=ledger.vocab,
        eos_id=ledger.eos_id,
        domains=tuple(sorted({shard.domain for shard in ledger.shards})),
    )
