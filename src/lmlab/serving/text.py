"""From token ids to text that may be sent: whole characters only, and nothing that may become a stop string.

A token of a byte-level BPE holds bytes, not characters: one character may be spread over several tokens.
"""

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from lmlab.core.errors import ConfigError


class Vocabulary:
    """The tokenizer of a model, with the bytes of every token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        byte_of = _byte_alphabet()
        self._pieces: list[bytes] = []
        for token_id in range(tokenizer.get_vocab_size()):
            word = tokenizer.id_to_token(token_id) or ""
            plain = token_id in added or any(letter not in byte_of for letter in word)
            self._pieces.append(word.encode() if plain else bytes(byte_of[letter] for letter in word))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read `tokenizer.json`. Raises ConfigError if it is no byte-level BPE."""
        tokenizer = Tokenizer.from_file(str(path))
        decoder = type(tokenizer.decoder).__name__
        if decoder != "ByteLevel":
            raise ConfigError(
                f"{path.name} decodes with {decoder}, and only byte-level BPE can be streamed byte for byte. "
                "Serve a model with a ByteLevel tokenizer."
            )
        return cls(tokenizer)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, without special tokens added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def piece(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; ids that the tokenizer doesn't know add none."""
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def visible(self, token_id: int) -> bytes:
        """The bytes a generated token adds to the answer: special tokens add none."""
        return b"" if token_id in self.special else self.piece(token_id)

    def label(self, token_id: int) -> str:
        """How log-probabilities name a token: its text, or `bytes:\\xe2\\x82` if that is no whole text."""
        piece = self.piece(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The whole text of some tokens."""
        return b"".join(map(self.piece, token_ids)).decode(errors="replace")


class TextStream:
    """Grows an answer token by token; what `push` returns can be sent and never has to be taken back.

    `before` is the text the answer continues: if it ends within a character, the answer completes it.

    >>> stream = TextStream(stop=("END",))
    >>> stream.push(b"caf\\xc3"), stream.push(b"\\xa9 E"), stream.push(b"NDLESS"), stream.stopped
    ('caf', 'é ', '', True)
    """

    def __init__(self, stop: Sequence[str] = (), before: bytes = b"") -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(before)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False
        """A stop string was met; the text before it has been returned."""

    def push(self, piece: bytes) -> str:
        """Add a token's bytes, get the text that is now certain."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(piece)
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self._held, self.stopped = "", True
            return text[: min(found)]
        sure = len(text) - self._may_be_stop(text)
        self._held = text[sure:]
        return text[:sure]

    def finish(self) -> str:
        """The text held back as the start of a stop string; a character cut short is left out."""
        held, self._held = self._held, ""
        return held

    def _may_be_stop(self, text: str) -> int:
        """How many characters at the end could be the beginning of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


def _byte_alphabet() -> dict[str, int]:
    """The letters by which byte-level BPE writes bytes: printable ones as themselves, others from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
