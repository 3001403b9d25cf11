"""One entry of a response's `choices`: text, finish reason, and log-probabilities in OpenAI's layout."""

import codecs
from collections.abc import Iterable
from typing import Any

from lmlab.serving.protocol import Completion
from lmlab.serving.sequence import Delta, Token
from lmlab.serving.text import Vocabulary


class Choice:
    """Renders the deltas of one answer, all at once or one by one: the parts concatenate to the whole."""

    def __init__(self, vocabulary: Vocabulary, body: Completion, index: int) -> None:
        self.tokens = 0
        """Tokens generated so far."""
        self._vocabulary = vocabulary
        self._body = body
        self._index = index
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def count(self, delta: Delta) -> None:
        """Note a delta that is not shown."""
        self.tokens += len(delta.tokens)

    def render(self, deltas: Iterable[Delta]) -> dict[str, Any]:
        """The choice as JSON, holding just these deltas."""
        text, finish = "", None
        prompt: list[Token] = []
        generated: list[Token] = []
        for delta in deltas:
            self.count(delta)
            text += delta.text
            finish = delta.finish or finish
            prompt += delta.prompt or ()
            generated += delta.tokens
        choice: dict[str, Any] = {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
        }
        if self._body.sampling.logprobs is not None:
            choice["logprobs"] = self._table(prompt, generated, self._body.sampling.logprobs)
        if self._body.return_token_ids:
            choice["token_ids"] = [token.id for token in generated]
        return choice

    def _table(self, prompt: list[Token], generated: list[Token], alternatives: int) -> dict[str, list[Any]]:
        vocabulary, tokens = self._vocabulary, prompt + generated
        pieces = [vocabulary.piece(token.id) for token in prompt]
        pieces += [vocabulary.visible(token.id) for token in generated]
        return {
            "tokens": [vocabulary.label(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token, alternatives) for token in tokens],
            "text_offset": [self._advance(piece) for piece in pieces],
        }

    def _top(self, token: Token, alternatives: int) -> dict[str, float] | None:
        """Label -> log-probability, best first, the token itself always included (as OpenAI does)."""
        if token.logprob is None:
            return None
        top: dict[str, float] = {}
        for token_id, logprob in (*token.top[:alternatives], (token.id, token.logprob)):
            # Two tokens may share a label; the likelier one, which comes first, keeps it.
            top.setdefault(self._vocabulary.label(token_id), logprob)
        return top

    def _advance(self, piece: bytes) -> int:
        """Where a token begins in the text, in characters."""
        start = self._offset
        self._offset += len(self._decoder.decode(piece))
        return start
