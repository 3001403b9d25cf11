"""An exported model folder, checked and loaded for serving: weights, tokenizer, end-of-text ids, length."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.models.config import Model
from lmlab.models.hf import load_folder, verify_folder
from lmlab.models.layers import Params
from lmlab.serving.text import Vocabulary


@dataclass(frozen=True)
class Loaded:
    """A model ready to be served."""

    config: Model
    params: Params
    vocabulary: Vocabulary
    eos_ids: frozenset[int]
    """Tokens that end an answer: the union of what generation config, config and tokenizer name."""
    max_length: int
    """Prompt plus answer, in tokens."""


def load_model(folder: Path, max_length: int | None = None) -> Loaded:
    """Verify the manifest, then load. `max_length` may only lower the model's own limit."""
    verify_folder(folder)
    config, params, *_ = load_folder(folder)
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    if max_length is not None and not 1 < max_length <= config.max_seq:
        raise ConfigError(
            f"max_model_len={max_length} is outside 2 to {config.max_seq}, the positions this model has. "
            f"Give at most {config.max_seq}, or leave it out."
        )
    return Loaded(config, params, vocabulary, _eos_ids(folder, vocabulary), max_length or config.max_seq)


def _eos_ids(folder: Path, vocabulary: Vocabulary) -> frozenset[int]:
    """Every source counts: preferring one has lost ids in other servers (vllm#4180, mlx-vlm#2112)."""
    found: set[int | None] = set()
    for name in ("generation_config.json", "config.json"):
        named = _read(folder / name).get("eos_token_id")
        found |= set(named) if isinstance(named, list) else {named}
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    found.add(vocabulary.tokenizer.token_to_id(content) if content else None)
    return frozenset(token_id for token_id in found if token_id is not None)


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}
