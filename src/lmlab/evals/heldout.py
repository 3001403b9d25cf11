"""The held-out documents as rows of a table: what every column of an evaluation is measured on."""

import math
from dataclasses import dataclass

import numpy as np
import zstandard
from jaxtyping import Float, Int

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.documents import Document, read_documents
from lmlab.tokens.store import Store

EXCERPT_CHARS = 300


@dataclass(frozen=True)
class HeldOut:
    """A row for each document, by domain and in the token store's order."""

    domains: tuple[str, ...]
    """Names, sorted."""
    ids: list[str]
    domain: Int[np.ndarray, " documents"]
    """Index into `domains`, ascending."""
    size_bytes: Int[np.ndarray, " documents"]
    tokens: Int[np.ndarray, " documents"]
    """Scored tokens: the end-of-document id is left out."""
    excerpts: list[str]
    """How each text begins."""
    compressed: Int[np.ndarray, " documents"]
    """Bytes that `zstd -19` makes of each document alone."""

    def rows(self, domain: str) -> slice:
        """The rows of one domain."""
        index = self.domains.index(domain)
        first, last = np.searchsorted(self.domain, [index, index + 1])
        return slice(int(first), int(last))


def read_held_out(documents: Path, store: Store) -> HeldOut:
    """Read the texts behind `store`; InputError unless they are the very documents it was made from."""
    by_domain: dict[str, list[Document]] = {domain: [] for domain in store.domains}
    compressed: dict[str, list[int]] = {domain: [] for domain in store.domains}
    # A frame as `zstd -19` writes it, without the checksum: the decoder knows no other document.
    compressor = zstandard.ZstdCompressor(level=19, write_checksum=False)
    for document in read_documents(documents):
        if document.domain not in by_domain:
            raise InputError(
                f"{documents} has a document of domain {document.domain!r}, and {store.folder} only "
                f"{', '.join(store.domains)}: it was made from other text. Tokenize these documents."
            )
        by_domain[document.domain].append(document._replace(data=document.data[: 4 * EXCERPT_CHARS]))
        compressed[document.domain].append(len(compressor.compress(document.data)))
    for domain, found in by_domain.items():
        _check_same(domain, found, store, documents)
    rows = [document for domain in store.domains for document in by_domain[domain]]
    sources = [store.source(domain) for domain in store.domains]
    return HeldOut(
        domains=store.domains,
        ids=[document.id for document in rows],
        domain=np.repeat(np.arange(len(sources)), [source.document_count for source in sources]),
        size_bytes=np.concatenate([source.byte_counts for source in sources]).astype(np.int64),
        tokens=np.concatenate([np.diff(source.offsets) - 1 for source in sources]),
        excerpts=[document.data.decode(errors="ignore")[:EXCERPT_CHARS] for document in rows],
        compressed=np.array([size for domain in store.domains for size in compressed[domain]], np.int64),
    )


def nats_of_bytes(count: Int[np.ndarray, " documents"]) -> Float[np.ndarray, " documents"]:
    """What a code of `count` bytes says, in nats: the unit of all columns."""
    return count * 8 * math.log(2)


def _check_same(domain: str, found: list[Document], store: Store, documents: Path) -> None:
    expected = [bytes(row).hex() for row in store.source(domain).ids]
    if [document.id for document in found] != expected:
        raise InputError(
            f"domain {domain}: {documents} has {len(found)} documents and the token store {store.folder} "
            f"{len(expected)}, not the same ones in the same order, so bytes and tokens would not belong "
            "together. Give the documents that the store was tokenized from."
        )
    if not sum(len(document.data) for document in found):
        raise InputError(
            f"domain {domain} of {documents} holds no text, so it has no bits per byte. Remove it."
        )
