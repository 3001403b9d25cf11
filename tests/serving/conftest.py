"""A small real byte-level tokenizer and model folders, made once per session."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lmlab.serving.text import Vocabulary

CORPUS = [
    "The quick brown fox jumps over the lazy dog. ",
    "def main():\n    return 42\n",
    "Grüße aus Köln. ",
] * 8


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)
