"""Documents in, token store out: one pass over the Parquet parts with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tokenizers

from lmlab.core.errors import InputError
from lmlab.core.units import format_bytes, format_count
from lmlab.storage import Path
from lmlab.tokens.documents import read_documents
from lmlab.tokens.encode import encode_documents, encoder_of
from lmlab.tokens.store import Ledger, StoreWriter

REPORT_EVERY = 1_000  # documents between two status lines


def write_store(
    folder: Path,
    documents: Path,
    tokenizer: tokenizers.Tokenizer,
    *,
    eos_id: int,
    address: str,
    workers: int,
    status: Callable[[str], None],
) -> Ledger:
    """Encode the documents in order and write them to `folder`. The same input gives the same bytes."""
    waiting: deque[_Waiting] = deque()  # read, but not yet encoded

    def texts() -> Iterator[bytes]:
        for document in read_documents(documents):
            _check_domain(document.domain)
            waiting.append(_Waiting(document.domain, document.id, len(document.data)))
            yield document.data

    encode = encoder_of(tokenizer)
    count = tokens = size_bytes = 0
    with StoreWriter(folder, vocab=tokenizer.get_vocab_size(), eos_id=eos_id, tokenizer=address) as writer:
        for ids in encode_documents(encode, texts(), workers):
            document = waiting.popleft()
            writer.add(document.domain, document.id, document.size_bytes, ids)
            count, tokens, size_bytes = count + 1, tokens + len(ids) + 1, size_bytes + document.size_bytes
            if count % REPORT_EVERY == 0:
                status(f"{count:,} documents, {format_bytes(size_bytes)}, {format_count(tokens)} tokens")
        return writer.finish()


class _Waiting(NamedTuple):
    domain: str
    id: str
    size_bytes: int


def _check_domain(domain: str) -> None:
    if not domain.replace("_", "").replace("-", "").isalnum():
        raise InputError(
            f"domain {domain!r} can't name a file of the token store. Use letters, digits, '-' and '_' only."
        )
