"""An exported model folder, checked and loaded for serving."""

from dataclasses import dataclass
from pathlib import Path

from lmlab.core.errors import ConfigError
from lmlab.models.config import Model
from lmlab.models.hf import load_folder, verify_folder
from lmlab.models.layers import Params
from lmlab.serving.text import Vocabulary


@dataclass(frozen=True)
class Served:
    """A model ready to be served."""

    config: Model
    params: Params
    vocabulary: Vocabulary
    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    max_length: int
    """Prompt plus answer, in tokens."""


def load_model(folder: Path, max_length: int | None = None) -> Served:
    """Verify the manifest, then load. `max_length` may only lower the model's own limit."""
    verify_folder(folder)
    config, params, eos_ids = load_folder(folder)
    if max_length is not None and not 1 < max_length <= config.max_seq:
        raise ConfigError(
            f"max_model_len={max_length} is outside 2 to {config.max_seq}, the positions this model has. "
            f"Give at most {config.max_seq}, or leave it out."
        )
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    return Served(config, params, vocabulary, frozenset(eos_ids), max_length or config.max_seq)
