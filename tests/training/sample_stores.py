"""Token stores of documents that count up or down, which a tiny model learns in a few steps."""

from pathlib import Path as LocalPath

import numpy as np

from lmlab.artifacts import Artifact
from lmlab.storage import Path
from lmlab.tokens.store import Head
from lmlab.tokens.write import ShardWriter, write_ledger

VOCAB, EOS = 32, 0
Documents = dict[str, list[list[int]]]


def write_store(folder: LocalPath, documents: Documents, *, vocab: int = VOCAB) -> Artifact:
    """A token store with these documents by domain; each token stands for two bytes of text."""
    place = Path(folder)
    writer = ShardWriter(place, "shard", Head(vocab, EOS, "tokenizers/test@dev"))
    for domain, texts in documents.items():
        for number, text in enumerate(texts):
            writer.add(domain, f"{number:032x}", 2 * len(text), [np.asarray(text)])
    write_ledger(place, writer.head, writer.finish())
    return Artifact.at(place, name=f"tokens/{folder.name}", version="dev")


def counting_documents(seed: int, count: int, domains: tuple[str, ...] = ("down", "up")) -> Documents:
    """Documents that count up or down from a random start."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, 31, count), random.integers(5, 60, count)
    steps = {domain: 1 if domain == "up" else -1 for domain in domains}
    return {
        domain: [
            [1 + (start + step * place) % (VOCAB - 1) for place in range(length)]
            for start, length in zip(starts, lengths, strict=True)
        ]
        for domain, step in steps.items()
    }
