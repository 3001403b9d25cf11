"""The fast path: kitoken where its ids equal those of `tokenizers`; otherwise that one, and it is said why.

A tokenizer is tried on hard texts once, in a process of its own, because kitoken ends the process where its
regular expressions overflow. The verdict is kept below LMLAB_CACHE by the tokenizer's sha256.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice, product

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lmlab.core import environ
from lmlab.dataflow.failures import TaskFailed, WorkersLost
from lmlab.dataflow.runner import Limits, open_runner
from lmlab.storage import Path, read_json, write_json
from lmlab.tokens.patterns import PATTERNS, byte_letters, pattern_of
from lmlab.tokens.pieces import Cutter

Ids = NDArray[np.uint32]
Encode = Callable[[Sequence[bytes]], list[Ids]]

KITOKEN_BYTES = 100_000
"""A longer piece goes to `tokenizers`: a million blanks overflow kitoken's stack and end the process."""
VERSION = 1  # of the hard texts


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns pieces of UTF-8 into exactly the ids that `tokenizers` gives. May be used by several threads."""

    name: str
    """"kitoken" or "tokenizers"."""
    why: str
    """Why it is not kitoken; empty if it is."""
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


def kitoken_encoder(tokenizer: tokenizers.Tokenizer) -> Encode:
    """kitoken, without the special tokens: it would cut the text around them even where they are text."""
    from kitoken import Kitoken

    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["special"]]
    parts["post_processor"] = None
    if name := pattern_of(tokenizer):  # spelled out: of GPT-2's own cutter kitoken makes another one
        parts["pre_tokenizer"] = json.loads(PATTERNS[name].pre_tokenizer().__getstate__())
    fast = Kitoken.from_tokenizers(json.dumps(parts).encode())
    slow = library_encoder(tokenizer)

    def encode(pieces: Sequence[bytes]) -> list[Ids]:
        return [
            np.array(fast.encode(piece.decode(), False), np.uint32)
            if len(piece) <= KITOKEN_BYTES
            else slow([piece])[0]
            for piece in pieces
        ]

    return encode


ENCODERS: dict[str, Callable[[tokenizers.Tokenizer], Encode]] = {
    "kitoken": kitoken_encoder,
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
    """Name of the encoder to use, and why it is not kitoken."""
    text = tokenizer.to_str()
    engines = f"{version('tokenizers')} {version('kitoken')} {VERSION}"
    sha256 = hashlib.sha256(f"{engines} {text}".encode()).hexdigest()
    kept = Path(environ.cache_dir()) / f"encoders/{sha256}.json"
    if not kept.exists():
        # Of two workers only the one that is needed starts; a single one would be this very process.
        with open_runner(2, on="local", limits=Limits(task_failures=1, worker_deaths=1)) as runner:
            try:
                (why,) = runner.run(first_difference, [text], name="trying kitoken")
            except (TaskFailed, WorkersLost) as error:
                why = str(error)
        write_json(kept, {"why": why})
    why = read_json(kept)["why"]
    return "tokenizers" if why else "kitoken", why


def first_difference(text: str) -> str:
    """What kitoken gets wrong of the tokenizer in `text`; empty if it is equal."""
    tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    try:
        fast, slow = kitoken_encoder(tokenizer), library_encoder(tokenizer)
        pieces = [text.encode() for text in hard_texts(tokenizer)]
        for piece, ours, theirs in zip(pieces, fast(pieces), slow(pieces), strict=True):
            if not np.array_equal(ours, theirs):
                return f"{piece.decode()[:40]!r} has other ids"
    except Exception as error:  # noqa: BLE001 - the boundary of a trial: whatever it raises, it is not used
        return f"{type(error).__name__}: {error}"[:200]
    return ""
