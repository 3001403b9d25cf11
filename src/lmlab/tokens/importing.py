"""Tokenizers of others as `tokenizers` has them: tiktoken's rank files, and what lies in a GGUF file.

A rank file holds only tokens. The merge behind each is found again by merging its bytes with the lower ranks,
which must leave two parts.
"""

import base64
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken, models, normalizers

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
# `tokenizer.ggml.pre`, as llama.cpp names it, to the pattern.
PRE = {
    **dict.fromkeys(["gpt-2", "mpt", "olmo", "jais"], "gpt2"),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"], "smollm"),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"], "cl100k"),
    **dict.fromkeys(["qwen2", "stablelm2"], "qwen2"),
    "gpt-4o": "o200k",
}
CONTROL, USER_DEFINED = 3, 4  # token types


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


def read_gguf(file: Path) -> Loaded:
    """The tokenizer of a GGUF file with its special tokens and chat template."""
    fields = _fields(file)
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE:
        what = f"tokenizer.ggml.model={kind!r}" if kind != "gpt2" else f"tokenizer.ggml.pre={pre!r}"
        raise InputError(
            f"{file} has {what}, and its text would be cut wrongly by any other. Known are byte-level BPEs "
            f"('gpt2') with {', '.join(PRE)}. Import the model's tokenizer.json instead."
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(vocab, merges, ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3", "gpt-4o"))
    tokenizer = byte_level_bpe(PRE[pre], model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    types = fields.get("tokenizer.ggml.token_type", [])
    for kinds, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        named = [token for token, found in zip(tokens, types, strict=False) if found == kinds]
        add([AddedToken(token, special=kinds == CONTROL, normalized=False) for token in named])
    config: dict[str, Any] = {"add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False))}
    for name in ("bos", "eos"):
        if (number := fields.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name}_token"] = tokens[number]
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return Loaded(tokenizer, config)


def _fields(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    with ExitStack() as stack:
        place = file
        if not file.is_local:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory())) / file.name
            file.copy_to(place)
        try:
            reader = GGUFReader(place.local)
            return {name: field.contents() for name, field in reader.fields.items()}
        except Exception as error:  # the reader fails in many ways on a file that is cut or no GGUF
            raise InputError(
                f"{file} can't be read as GGUF ({error}). It may be cut off: fetch it again."
            ) from error
