"""The tokenizer's files: lossless on any text, and read alike by others."""

import pytest
import tokenizers
from hypothesis import given, settings, strategies as st

from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.tokenizer import END_OF_TEXT, byte_level_bpe, end_of_text_id, load_tokenizer


@given(text=st.text(max_size=300))
@settings(deadline=None)
def test_decoding_gives_back_any_text(tokenizer: tokenizers.Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_reads_the_folder_alike(tokenizer_folder: Path, tokenizer, texts: list[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tokenizer_folder.local))
    assert theirs.eos_token == END_OF_TEXT
    assert theirs(texts[0])["input_ids"] == tokenizer.encode(texts[0]).ids


def test_a_folder_without_a_tokenizer_says_so(tmp_path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        load_tokenizer(Path(tmp_path))


def test_a_tokenizer_that_can_not_end_documents_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no <\|endoftext\|> token"):
        end_of_text_id(byte_level_bpe())
