"""One sequence being answered: what it has produced, when it ends, and what its reader gets to see."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lmlab.serving.protocol import ApiError, Sampling
from lmlab.serving.text import TextStream, Vocabulary

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Token:
    """A token with the model's own log-probabilities (temperature 1, nothing cut off)."""

    id: int
    logprob: float | None
    """In nats; None for the first token of a prompt, and where none were asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at this place, best first."""


@dataclass(frozen=True)
class Delta:
    """What is new in an answer. The last one carries `finish` or `error`."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] | None = None
    """The scored prompt, in the first delta of an echo."""
    finish: Finish | None = None
    error: ApiError | None = None

    @property
    def is_last(self) -> bool:
        """Nothing follows."""
        return self.finish is not None or self.error is not None


@dataclass(frozen=True)
class Ask:
    """A prompt to continue, and who hears of it: `sink` runs on the engine's thread and must not block."""

    prompt: tuple[int, ...]
    sampling: Sampling
    sink: Callable[[Delta], None]


class Answer:
    """The state of one sequence from submission to its last delta."""

    def __init__(self, ask: Ask, vocabulary: Vocabulary, eos_ids: frozenset[int]) -> None:
        self.prompt = ask.prompt
        self.sampling = ask.sampling
        self.is_done = False
        self.is_cancelled = False
        self._sink = ask.sink
        self._vocabulary = vocabulary
        self._ends = frozenset(self.sampling.stop_ids)
        if not self.sampling.ignore_eos:
            self._ends |= eos_ids
        before = b"".join(map(vocabulary.piece, ask.prompt[-4:]))
        self._text = TextStream(self.sampling.stop, before)
        self._produced = 0
        # Nothing comes before the first token, so nothing scores it.
        self._scores = [Token(ask.prompt[0], None)]

    def cancel(self) -> None:
        """Nobody reads on: the engine frees the slot before its next step. Safe from any thread."""
        self.is_cancelled = True

    def wants_prompt_scores(self) -> bool:
        """Whether the prompt's own tokens need log-probabilities."""
        return self.sampling.echo and self.sampling.logprobs is not None

    def take_scores(self, following: Sequence[Token]) -> None:
        """Note the scores of a prefilled chunk's following tokens, if the prompt is to be echoed."""
        if self.sampling.echo:
            self._scores += following

    def echo(self) -> None:
        """The prompt is through: send it back if asked for; an answer of 0 tokens ends here."""
        finish = "length" if self.sampling.max_tokens == 0 else None
        if self.sampling.echo:
            # A character that the prompt leaves unfinished is the answer's to complete.
            text = TextStream().push(b"".join(map(self._vocabulary.piece, self.prompt)))
            self._send(Delta(text=text, prompt=tuple(self._scores), finish=finish))
        elif finish:
            self._send(Delta(finish=finish))

    def accept(self, token: Token) -> None:
        """Take the next token, send what it makes certain, and end the answer where it has to end."""
        self._produced += 1
        text, finish = "", None
        if token.id in self._ends:
            finish = "stop"
        else:
            text = self._text.push(self._vocabulary.visible(token.id))
            if self._text.stopped:
                finish = "stop"
            elif self._produced == self.sampling.max_tokens:
                finish = "length"
        if finish is not None:
            text += self._text.finish()
        self._send(Delta(text=text, tokens=(token,), finish=finish))

    def fail(self, error: ApiError) -> None:
        """End the answer with an error."""
        if not self.is_done:
            self._send(Delta(error=error))

    def _send(self, delta: Delta) -> None:
        self.is_done = delta.is_last
        if not self.is_cancelled:
            self._sink(delta)
