"""Conversations as a model reads them: its own chat template, which tokens it is trained on, where it stops.

The template is a stranger's program, so it runs in jinja's immutable sandbox. What an assistant says is found
in the rendered text: by the template's own `{% generation %}` blocks, else from the end of the prompt that
the model would be given at that turn to the end of its stop token. Tokens are those of the whole text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
import numpy as np
import tokenizers
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.tokenizer import Loaded, added_ids, load_all

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
OPEN, CLOSE, PROBE = "\ue0a0", "\ue0a1", "\ue0a2"  # private characters; a text that has one is refused


@dataclass(frozen=True)
class Rendered:
    """One conversation as the model reads it."""

    text: str
    ids: list[int]
    mask: np.ndarray
    """True for the tokens that the assistant says, its stop token included."""
    notes: tuple[str, ...] = ()
    """What makes training differ from use."""


@dataclass(frozen=True, eq=False)
class Chat:
    """A tokenizer with its chat template."""

    loaded: Loaded
    name: str
    """For messages."""

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **options: Any) -> str:
        """The conversation as text; `add_generation_prompt=True` opens the assistant's next turn."""
        return _unmarked(self._rendered(messages, tools, **options))

    def train_on(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Rendered:
        """Ids of the whole conversation, and which of them the model is to learn to say."""
        check_messages(messages, self._special)
        marked = self._rendered(messages, tools)
        text, notes = _unmarked(marked), []
        spans = list(_marked_spans(marked))
        if not spans:
            turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
            spans = [self._span(text, messages, tools, turn, notes) for turn in turns]
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        mask = np.zeros(len(encoding.ids), bool)
        starts = np.array([start for start, _ in encoding.offsets])
        for start, end in spans:
            mask |= (starts >= start) & (starts < end)
            if any(left < start < right for left, right in encoding.offsets):
                notes.append("a token lies across the start of an assistant's turn and is not trained on")
        return Rendered(text, encoding.ids, mask, tuple(dict.fromkeys(notes)))

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which the model stops: of both configs, and the one with which the template ends a turn.

        A base model's end of text alone would let a chat model talk on (Llama 3.1: 128001 for 128009).
        """
        ids = added_ids(self._tokenizer)
        named = self.loaded.generation.get("eos_token_id")
        found = {ids.get(_content(self.loaded.config.get("eos_token"))), ids.get(self.turn_end)}
        found |= set(named) if isinstance(named, list) else {named}
        return tuple(sorted(number for number in found if number is not None))

    @cached_property
    def turn_end(self) -> str:
        """The special token that the template writes after what an assistant says; empty for none."""
        said = self.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": PROBE}])
        found = self._special.search(said, said.index(PROBE))
        return found.group() if found else ""

    def _span(
        self,
        text: str,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        turn: int,
        notes: list[str],
    ) -> tuple[int, int]:
        """Where the assistant's `turn` stands in the whole text."""
        prompt = self.render(messages[:turn], tools, add_generation_prompt=True)
        probed = [*messages[:turn], {**messages[turn], "content": PROBE}, *messages[turn + 1 :]]
        other = self.render(probed, tools)
        said_end = len(text) - _common(text[::-1], other[::-1])
        found = self._special.search(text, said_end) if self.turn_end else None
        start, end = len(prompt), found.end() if found else said_end
        if not text.startswith(prompt):
            opening = prompt[len(self.render(messages[:turn], tools)) :]
            start = text.rfind(opening, 0, _common(text, other) + 1) + len(opening)
            notes.append("an earlier turn is written otherwise once the conversation goes on")
        added, content, _ = text[start:end].partition(
            str(messages[turn].get("content") or "").strip() or "\0"
        )
        if content and added.strip():
            notes.append(f"the template puts {added.strip()!r} before what the assistant says")
        if not text.startswith(self.render(messages[: turn + 1], tools)):
            notes.append("a turn is written otherwise than when it was the last: its prompt differs in use")
        return start, end

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, **options: Any) -> str:
        config = self.loaded.config
        named = {key: _content(value) for key, value in config.items() if key.endswith("_token") and value}
        try:
            return self._template.render(messages=messages, tools=tools or None, **named, **options)
        except Exception as error:  # the template is a stranger's program: whatever it raises
            raise InputError(
                f"the chat template of {self.name} refuses the conversation ({error}). Change its messages "
                "to what the template knows."
            ) from error

    @cached_property
    def _template(self) -> jinja2.Template:
        source = self.loaded.config.get("chat_template")
        if isinstance(source, list):  # several named ones
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            raise InputError(
                f"{self.name} has no chat template, so a conversation has no agreed form. Give a tokenizer "
                "with a chat_template in tokenizer_config.json, or as chat_template.jinja."
            )
        box = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        box.filters["tojson"] = _to_json
        # No strftime_now, which templates do without: the same conversation gives the same ids every day.
        helpers: dict[str, Any] = {"raise_exception": _refuse}
        try:
            return box.from_string(source, globals=helpers)
        except jinja2.TemplateError as error:
            raise InputError(
                f"the chat template of {self.name} can't be read ({error}). Fetch it again."
            ) from error

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(self.loaded.tokenizer.to_str())
        tokenizer.encode_special_tokens = False
        return tokenizer

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Finds special tokens in text."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")


def load_chat(place: Path) -> Chat:
    """The chat of a tokenizer: a folder with tokenizer.json and its configs, or a .gguf file."""
    return Chat(load_all(place), str(place))


def check_messages(messages: Sequence[Message], special: re.Pattern[str]) -> None:
    """InputError for what can't be a conversation, naming the message."""
    if not messages:
        raise InputError("it has no messages, so there is nothing to learn. Leave it out.")
    for number, message in enumerate(messages):
        role, content = message.get("role"), str(message.get("content") or "")
        if role not in ROLES:
            raise InputError(f"message {number} has role {role!r}, not one of {', '.join(ROLES)}. Rename it.")
        if not content.strip() and not message.get("tool_calls"):
            raise InputError(
                f"message {number} ({role}) is empty, so it would teach to say nothing. Drop it."
            )
        if found := special.search(content) or re.search(f"[{OPEN}{CLOSE}{PROBE}]", content):
            raise InputError(
                f"message {number} ({role}) has {found.group()!r} in its text, which would be read as a "
                "border of turns. Write it otherwise."
            )


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}` around what the assistant says, as transformers has it."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own attribute

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = [nodes.Output([nodes.TemplateData(character)]) for character in (OPEN, CLOSE)]
        return [mark[0], *body, mark[1]]


def _marked_spans(marked: str) -> Iterator[tuple[int, int]]:
    start = length = 0
    for piece in re.split(f"([{OPEN}{CLOSE}])", marked):
        if piece == OPEN:
            start = length
        elif piece == CLOSE:
            yield start, length
        else:
            length += len(piece)


def _unmarked(marked: str) -> str:
    return marked.replace(OPEN, "").replace(CLOSE, "")


def _content(token: Any) -> Any:
    """The text of a token as configs write it: plain, or with its properties."""
    return token["content"] if isinstance(token, dict) else token


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # jinja's own escapes < and & for pages


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
