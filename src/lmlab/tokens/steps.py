"""The steps of tokens: documents to a tokenizer, documents and a tokenizer to a token store."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.core.errors import ConfigError

if TYPE_CHECKING:
    from lmlab.tokens.store import Ledger


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


@step(check=_check_sizes)
def train_tokenizer(
    out: Out, documents: Artifact, vocab: int = 8192, sample_bytes: int = 16_000_000, alpha: float = 0.3
) -> Tokenizer:
    """Train a byte-level BPE of `vocab` ids on `sample_bytes` of text, each domain's share ~ bytes**alpha."""
    from lmlab.tokens.tokenizer import TRAINED, Loaded, end_of_text_id, save_tokenizer
    from lmlab.tokens.train import balanced_sample, train_bpe

    out.status(f"training {vocab:,} ids on about {sample_bytes / 1e6:.0f} MB")
    trained = train_bpe(balanced_sample(documents.path, sample_bytes, alpha), vocab)
    save_tokenizer(Loaded(trained, TRAINED), out.path)
    return Tokenizer(vocab=trained.get_vocab_size(), eos_id=end_of_text_id(trained))


@step
def import_tokenizer(
    out: Out, file: str, pattern: str | None = None, end_of_document: str | None = None
) -> Tokenizer:
    """Read a tokenizer.json (or a folder with one), a .tiktoken or a .gguf file from any place.

    `pattern` is for rank files of unknown names; `end_of_document` for tokenizers that call it unusually.
    """
    from lmlab.storage import Path
    from lmlab.tokens.tokenizer import end_of_text_id, load_all, save_tokenizer, vocab_size

    loaded = load_all(Path(file), pattern)
    eos_id = end_of_text_id(loaded.tokenizer, end_of_document)
    save_tokenizer(loaded, out.path)
    return Tokenizer(vocab=vocab_size(loaded.tokenizer), eos_id=eos_id)


@step(resumes=True)
def tokenize(out: Out, documents: Artifact, tokenizer: Tokenizer, workers: RunOnly[int] = 2) -> TokenStore:
    """Encode every document, in order, into a token store: one task for each file, `workers` at once."""
    from lmlab.dataflow.runner import open_runner
    from lmlab.tokens.documents import document_files
    from lmlab.tokens.write import encoding_with, write_store

    encoding = encoding_with(tokenizer.path, tokenizer.address, tokenizer.eos_id)
    with open_runner(workers) as runner:
        ledger = write_store(out.path, document_files(documents.path), encoding, runner, out.status)
    return store_of(ledger)


@step(resumes=True)
def tokenize_chat(
    out: Out, conversations: Artifact, tokenizer: Tokenizer, workers: RunOnly[int] = 2
) -> TokenStore:
    """Render conversations with the tokenizer's chat template; the store's mask marks what is trained on.

    Raises InputError naming the conversation for wrong roles or empty content. What makes a training prompt
    differ from the one that the model will see is counted in the ledger.
    """
    from lmlab.dataflow.runner import open_runner
    from lmlab.tokens.conversations import write_chat_shards
    from lmlab.tokens.documents import document_files
    from lmlab.tokens.write import encoding_with, write_store

    encoding = encoding_with(tokenizer.path, tokenizer.address, tokenizer.eos_id, "tokenizers")
    files = document_files(conversations.path)
    with open_runner(workers) as runner:
        return store_of(write_store(out.path, files, encoding, runner, out.status, write_chat_shards))


@step
def merge_tokens(out: Out, stores: tuple[TokenStore, ...]) -> TokenStore:
    """One store of all documents of several, each document once; one shard for each store and domain."""
    from lmlab.tokens.selecting import select_documents
    from lmlab.tokens.store import open_store

    opened = {store.address: open_store(store.path) for store in stores}
    return store_of(select_documents(out.path, opened))


def budgets_of(tokens: int, shares: dict[str, float], **_others: object) -> dict[str, int]:
    """Tokens for each domain: `tokens` in proportion to the shares.

    >>> budgets_of(1000, {"code": 3, "prose": 1})
    {'code': 750, 'prose': 250}
    """
    if not shares or min(shares.values()) <= 0 or tokens <= 0:
        raise ConfigError(
            f"tokens={tokens}, shares={shares}: a slice needs tokens and shares above 0. Leave a domain out "
            "to take nothing of it."
        )
    return {domain: round(tokens * share / sum(shares.values())) for domain, share in shares.items()}


@step(check=budgets_of)
def slice_tokens(
    out: Out,
    stores: tuple[TokenStore, ...],
    tokens: int,
    shares: dict[str, float],
    without: tuple[TokenStore, ...] = (),
) -> TokenStore:
    """A data set of `tokens` from some domains in proportion to `shares`, nothing tokenized again.

    No document is taken twice or from `without` (a held-out slice). README.md is the card of the data set.
    """
    from lmlab.tokens.card import card
    from lmlab.tokens.selecting import select_documents
    from lmlab.tokens.store import open_store

    opened = {store.address: open_store(store.path) for store in stores}
    others = [open_store(store.path) for store in without]
    ledger = select_documents(out.path, opened, budgets_of(tokens, shares), others)
    (out.path / "README.md").write_text(card(ledger, out.address))
    return store_of(ledger)


def store_of(ledger: "Ledger") -> TokenStore:
    """What a step records of the store it wrote."""
    totals = ledger.totals()
    return TokenStore(
        tokens=sum(run.tokens for run in totals.values()),
        documents=sum(run.documents for run in totals.values()),
        size_bytes=sum(run.bytes for run in totals.values()),
        vocab=ledger.head.vocab,
        eos_id=ledger.head.eos_id,
        domains=tuple(totals),
    )
