"""The fast path: the compiled encoder where its ids equal those of `tokenizers`; otherwise that one, and why.

A tokenizer is tried on hard texts once. The verdict is kept below LMLAB_CACHE by the tokenizer's sha256.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice, product

import numpy as np
import tokenizers

from lmlab.core import environ
from lmlab.storage import Path, read_json, write_json
from lmlab.tokens.compiled import CompiledEncoder, Ids, why_not_compiled
from lmlab.tokens.patterns import byte_letters
from lmlab.tokens.pieces import Cutter

Encode = Callable[[Sequence[bytes]], list[Ids]]

VERSION = 2  # of the compiled encoder and the hard texts


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns pieces of UTF-8 into exactly the ids that `tokenizers` gives. May be used by several threads."""

    name: str
    """"compiled" or "tokenizers"."""
    why: str
    """Why it is not the compiled one; empty if it is."""
    encode: Encode
    cutter: Cutter

    def __call__(self, pieces: Sequence[bytes]) -> list[Ids]:
        """The ids of each piece."""
        return self.encode(pieces)


def encoder_of(tokenizer: tokenizers.Tokenizer, name: str | None = None) -> Encoder:
    """The fastest encoder that proved equal; `name` is one that was chosen before."""
    name, why = (name, "") if name else _verdict(tokenizer)
    return Encoder(name, why, ENCODERS[name](tokenizer), Cutter(tokenizer))


def library_encoder(tokenizer: tokenizers.Tokenizer) -> Encode:
    """`tokenizers` itself."""

    def encode(pieces: Sequence[bytes]) -> list[Ids]:
        texts = [piece.decode() for piece in pieces]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encoded]

    return encode


ENCODERS: dict[str, Callable[[tokenizers.Tokenizer], Encode]] = {
    "compiled": CompiledEncoder,
    "tokenizers": library_encoder,
}


def hard_texts(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    """What encoders disagree about: every pair of what borders depend on, every entry of the vocabulary,
    characters of all planes, specials as text, long words, marks in every order."""
    words = "a I the 7 2024 ½ ٣ ' 's 'LL ſ . / ... = _ é न ि 漢 각 Ⅷ ǅ ʰ 🙂 A ß Å e\u0301 \u0301 👩\u200d💻"
    blanks = [" ", "  ", "\n", "\r\n", "\t", "\xa0", "\u3000", "\u200b", "\x85", "\0", "\ufffd", "\U0010ffff"]
    atoms = [*words.split(), *blanks, "\u1100\u1161\u11a8"]
    yield from ("".join(pair) for pair in product(atoms, repeat=2))
    yield "".join("".join(three) for three in islice(product(atoms, repeat=3), 0, None, 7))
    points = [chr(point) for point in range(0, 0x32000, 5) if not 0xD800 <= point < 0xE000]
    yield from (f"a{point}b {point}1{point} \n{point}" for point in points)
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    yield from (f"x{content} {content}\n{content}y" for content in specials)
    yield from (
        "ab" * 400,
        "é" * 300,
        " " * 5_000,
        "\n" * 3_000,
        "1" * 1_000,
        "漢字" * 500,
        "(" * 700 + "!",
        "",
    )
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    words = sorted(tokenizer.get_vocab(with_added_tokens=False))
    for start in range(0, len(words), 64):
        letters = "".join(words[start : start + 64])
        yield bytes(byte_of[letter] for letter in letters if letter in byte_of).decode(errors="ignore")


def _verdict(tokenizer: tokenizers.Tokenizer) -> tuple[str, str]:
    """Name of the encoder to use, and why it is not the compiled one."""
    text = tokenizer.to_str()
    sha256 = hashlib.sha256(f"{version('tokenizers')} {VERSION} {text}".encode()).hexdigest()
    kept = Path(environ.cache_dir()) / f"encoders/{sha256}.json"
    if not kept.exists():
        write_json(kept, {"why": first_difference(text)})
    why = read_json(kept)["why"]
    return "tokenizers" if why else "compiled", why


def first_difference(text: str) -> str:
    """Why the compiled encoder can't be used for the tokenizer in `text`; empty if it is equal."""
    tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    if why := why_not_compiled(tokenizer):
        return why
    fast, slow = CompiledEncoder(tokenizer), library_encoder(tokenizer)
    pieces = [text.encode() for text in hard_texts(tokenizer)]
    for piece, ours, theirs in zip(pieces, fast(pieces), slow(pieces), strict=True):
        if not np.array_equal(ours, theirs):
            return f"{piece.decode()[:40]!r} has other ids"
    return ""
