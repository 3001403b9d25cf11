"""tiktoken's rank files as `tokenizers`: the same ids, in the files that everything else reads.

A rank file holds only tokens. The merge behind each is found again by merging its bytes with the lower ranks,
which must leave two parts.
"""

import base64
from itertools import pairwise

from tokenizers import AddedToken, models

from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.patterns import PATTERNS, byte_letters
from lmlab.tokens.tokenizer import END_OF_TEXT, Loaded, byte_level_bpe

# By the start of the file's name: the pattern, and the special tokens that are not in the file.
_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
KNOWN: dict[str, tuple[str, dict[str, int]]] = {
    "r50k": ("gpt2", {END_OF_TEXT: 50256}),
    "p50k": ("gpt2", {END_OF_TEXT: 50256}),
    "cl100k": ("cl100k", {END_OF_TEXT: 100257, **_FIM, "<|endofprompt|>": 100276}),
    "o200k": ("o200k", {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}),
}


def read_tiktoken(file: Path, pattern: str | None = None) -> Loaded:
    """The tokenizer of a rank file. Under another name than a known one its `pattern` must be given."""
    name = file.name.partition("_")[0].partition(".")[0]
    if name not in KNOWN and pattern not in PATTERNS:
        raise ConfigError(
            f"{file} does not say how text is cut into words: name the file as its encoding "
            f"({', '.join(KNOWN)}), or give the pattern: {', '.join(PATTERNS)}."
        )
    ranks = _ranks(file)
    known, specials = KNOWN.get(name, (pattern, {END_OF_TEXT: max(ranks.values()) + 1}))
    letters = byte_letters()
    text = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocab = {text[token]: rank for token, rank in ranks.items()}
    if clash := next((token for token, number in specials.items() if number in ranks.values()), None):
        raise InputError(f"{file}: the id of {clash} is taken, so this is no {name} file. Fetch it again.")
    merges = [_parts(token, rank, ranks, file) for token, rank in ranks.items() if len(token) > 1]
    model = models.BPE(
        vocab | specials, [(text[left], text[right]) for left, right in merges], ignore_merges=True
    )
    tokenizer = byte_level_bpe(pattern or known or "", model)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return Loaded(tokenizer, {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT})


def _ranks(file: Path) -> dict[bytes, int]:
    """Tokens with their ranks, lowest first."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise InputError(
                f"{file}, line {number}, is no rank ({line[:40]!r}): it may be cut off. Fetch it again."
            ) from error
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise InputError(f"{file} has no token for byte {missing[0]}, so text would be lost. Fetch it again.")
    return dict(sorted(ranks.items(), key=lambda pair: pair[1]))


def _parts(token: bytes, own: int, ranks: dict[bytes, int], file: Path) -> tuple[bytes, bytes]:
    """The two tokens that are merged last into this one."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, own) for left, right in pairwise(parts)]
        lowest = min(pairs)
        if lowest >= own:
            raise InputError(f"{file}: no lower ranks make the token of rank {own}. Fetch the file again.")
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
