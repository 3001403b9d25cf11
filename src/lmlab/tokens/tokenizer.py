"""What a tokenizer is here: byte-level BPE in the files that `tokenizers` and `transformers` read.

A document is data: "<|endoftext|>" inside it is text like any other, never the id that ends a document.
"""

from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import decoders, models

from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path, read_json, write_json
from lmlab.tokens.patterns import PATTERNS, pattern_of

END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")
"""How known tokenizers call the end of a document, which is not the end of a chat's turn."""
CONFIGS = ("tokenizer_config.json", "generation_config.json")
PLAIN = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
}
TRAINED = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
"""The config of a tokenizer that `train_bpe` made, beside what is in all of them."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A tokenizer with what stands beside it."""

    tokenizer: tokenizers.Tokenizer
    config: dict[str, Any] = field(default_factory=dict)
    """tokenizer_config.json; the chat template is in it."""
    generation: dict[str, Any] = field(default_factory=dict)
    """generation_config.json."""


def byte_level_bpe(pattern: str = "lmlab", model: models.BPE | None = None) -> tokenizers.Tokenizer:
    """A tokenizer of the pattern; without a model one that has learned nothing yet."""
    tokenizer = tokenizers.Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = PATTERNS[pattern].pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load_tokenizer(place: Path) -> tokenizers.Tokenizer:
    """A tokenizer for documents: text that looks like a special token stays text.

    `place` is a folder with a tokenizer.json, such a file, a .tiktoken or a .gguf file.
    """
    tokenizer = load_all(place).tokenizer
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_all(place: Path, pattern: str | None = None) -> Loaded:
    """The tokenizer and its configs; `pattern` is that of a .tiktoken file whose name does not tell it."""
    if place.name.endswith((".tiktoken", ".gguf")):
        from lmlab.tokens import importing

        is_gguf = place.name.endswith(".gguf")
        return importing.read_gguf(place) if is_gguf else importing.read_tiktoken(place, pattern)
    file = place if place.name.endswith(".json") else place / "tokenizer.json"
    data = file.read_if_present()
    if data is None:
        raise InputError(
            f"{place} has no tokenizer.json, so it is no tokenizer. Give a folder with one, or a .json, "
            ".tiktoken or .gguf file."
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # `tokenizers` raises plain Exception for whatever it can't read
        raise InputError(f"{file} is no tokenizer that can be read ({error}). Fetch it again.") from error
    found = [file.parent / name for name in CONFIGS]
    config, generation = (read_json(path) if path.exists() else {} for path in found)
    template = file.parent / "chat_template.jinja"  # where newer models keep it
    return Loaded(
        tokenizer,
        config | {"chat_template": template.read_text()} if template.exists() else config,
        generation,
    )


def save_tokenizer(loaded: Loaded, folder: Path) -> None:
    """Write `tokenizer.json` and the configs that `transformers` reads."""
    (folder / "tokenizer.json").write_text(loaded.tokenizer.to_str(pretty=True))
    write_json(folder / "tokenizer_config.json", PLAIN | loaded.config)
    if loaded.generation:
        write_json(folder / "generation_config.json", loaded.generation)


def end_of_text_id(tokenizer: tokenizers.Tokenizer, token: str | None = None) -> int:
    """The id that ends a document: of `token`, else of the first of `ENDS`; ConfigError without one."""
    specials = added_ids(tokenizer)
    for name in [token] if token else ENDS:
        if name in specials:
            return specials[name]
    raise ConfigError(
        f"the tokenizer has no {token or END_OF_TEXT} token, so documents could not be told apart. Name the "
        "one that ends a document (end_of_document=…), or use a tokenizer made by `train_tokenizer`."
    )


def added_ids(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    """Ids of special and other added tokens; a vocabulary may have "</s>" as plain text too."""
    return {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}


def vocab_size(tokenizer: tokenizers.Tokenizer) -> int:
    """One more than the largest id: vocabularies may have gaps."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def facts(loaded: Loaded) -> dict[str, Any]:
    """What one wants to know of a tokenizer before training on it."""
    tokenizer = loaded.tokenizer
    added = tokenizer.get_added_tokens_decoder()
    name = pattern_of(tokenizer)
    named = loaded.config.get("eos_token")
    return {
        "vocab": vocab_size(tokenizer),
        "pattern": name or "unknown",
        "digits": (PATTERNS[name].digits or "any number") if name else "unknown",
        "normalizer": type(tokenizer.normalizer).__name__ if tokenizer.normalizer else None,
        "ends": {name: number for name, number in added_ids(tokenizer).items() if name in ENDS},
        "eos_token": named["content"] if isinstance(named, dict) else named,
        "special_tokens": sum(token.special for token in added.values()),
        "found_in_text": sorted(token.content for token in added.values() if not token.special),
        "chat_template": "chat_template" in loaded.config,
    }
