"""What a tokenizer is here: a byte-level BPE in the files that `tokenizers` and `transformers` read.

A document is data: "<|endoftext|>" inside it is text like any other, never the id that ends a document.
"""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path, write_json

END_OF_TEXT = "<|endoftext|>"

# GPT-4's pattern in the form Oniguruma reads alike: no `$` (it matches at every line end there) and no
# possessive quantifiers. Combining marks (\p{M}) count as letters, or Hindi words fall apart at vowel signs.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def byte_level_bpe() -> tokenizers.Tokenizer:
    """A tokenizer that has learned nothing yet."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


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
