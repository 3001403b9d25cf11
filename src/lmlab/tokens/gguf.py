"""The tokenizer inside a GGUF file, rebuilt for `tokenizers` with the pre-tokenizer the file names."""

import tempfile
from contextlib import ExitStack
from typing import Any

from tokenizers import AddedToken, models, normalizers

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.tokenizer import Loaded, byte_level_bpe

# `tokenizer.ggml.pre`, as llama.cpp names it, to the pattern.
PRE = {
    **dict.fromkeys(["gpt-2", "mpt", "olmo", "jais"], "gpt2"),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"], "smollm"),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"], "cl100k"),
    **dict.fromkeys(["qwen2", "stablelm2"], "qwen2"),
    "gpt-4o": "o200k",
}
CONTROL, USER_DEFINED = 3, 4  # token types


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
