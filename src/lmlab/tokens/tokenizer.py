"""Encode documents with a `tokenizers` file: bounded batches, long documents in pieces, no specials parsed.

A document is data: "<|endoftext|>" inside it is text like any other, never the id that ends a document.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np
import tokenizers

from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path, write_json

END_OF_TEXT = "<|endoftext|>"
PIECE_CHARS = 10_000  # longer documents are cut here or at the next safe point
BATCH_PIECES, BATCH_CHARS = (
    256,
    400_000,
)  # bounds what the library holds at once; a 64 M character record passes

# Between a visible character and one space before a visible one every GPT-like pattern (GPT-2 to o200k, ours)
# has a token border, whatever stands further left or right, so the pieces' ids join to the whole text's ids.
SAFE_POINT = re.compile(r"(?<=\S)(?= \S)")


def load_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of an artifact, for documents: text that looks like a special token stays text."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise InputError(
            f"{folder} has no tokenizer.json, so it is no tokenizer. Give one made by `train_tokenizer`."
        )
    tokenizer = tokenizers.Tokenizer.from_str(file.read_text())
    tokenizer.encode_special_tokens = True
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and the `tokenizer_config.json` that `transformers` reads."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "pad_token": END_OF_TEXT,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
        },
    )


def end_of_text_id(tokenizer: tokenizers.Tokenizer) -> int:
    """The id that ends a document; ConfigError when the tokenizer has none."""
    found = tokenizer.token_to_id(END_OF_TEXT)
    if found is None:
        raise ConfigError(
            f"the tokenizer has no {END_OF_TEXT} token, so documents could not be told apart. "
            "Use one trained by `train_tokenizer`."
        )
    return found


def encode_documents(tokenizer: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """The ids (uint32) of each text in order, equal to encoding it whole, with bounded memory."""
    whole: list[np.ndarray] = []
    for batch in _batches(texts):
        encoded = tokenizer.encode_batch_fast([piece for piece, _ in batch], add_special_tokens=False)
        for encoding, (_, is_last) in zip(encoded, batch, strict=True):
            whole.append(np.array(encoding.ids, dtype=np.uint32))
            if is_last:
                yield whole[0] if len(whole) == 1 else np.concatenate(whole)
                whole = []


def safe_pieces(text: str, piece_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text at safe points into pieces of about `piece_chars`; text without one stays whole."""
    start = 0
    while len(text) - start > piece_chars:
        cut = SAFE_POINT.search(text, start + piece_chars)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _batches(texts: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces with a flag on the last one of each text, grouped up to the batch bounds."""
    batch: list[tuple[str, bool]] = []
    chars = 0
    for text in texts:
        left = len(text)
        for piece in safe_pieces(text):
            left -= len(piece)
            batch.append((piece, left == 0))
            chars += len(piece)
            if len(batch) >= BATCH_PIECES or chars >= BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch
