"""Continuous batching: one thread owns the weights and the cache, and serves all sequences token by token.

A sequence takes a slot as soon as one is free, is prefilled chunk by chunk between decode steps, and leaves
when it ends. Everything else (HTTP, chat, tests) talks to it through `submit` and sinks.
"""

import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.models.host import prepare_process
from lmlab.serving.programs import LONGEST_CHUNK, Chunk, Programs
from lmlab.serving.protocol import ApiError, Sampling, bad_request
from lmlab.serving.sequence import Answer, Ask, Delta, Token
from lmlab.serving.text import Vocabulary


class Engine:
    """Answers sequences with one model. Its thread starts at once and ends with `close`."""

    def __init__(
        self, programs: Programs, vocabulary: Vocabulary, eos_ids: frozenset[int], *, max_waiting: int = 64
    ) -> None:
        self.vocabulary = vocabulary
        self.vocab = programs.config.vocab
        self.max_model_len = programs.max_length
        self._programs = programs
        self._eos_ids = eos_ids
        self._max_waiting = max_waiting
        self._slots: list[Answer | None] = [None] * programs.slots
        self._prefilled = [0] * programs.slots
        self._admitted = [0] * programs.slots
        self._admissions = 0
        self._waiting: deque[Answer] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._failure: str | None = None
        self._generated = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls, folder: Path, *, slots: int = 8, max_waiting: int = 64, max_model_len: int | None = None
    ) -> "Engine":
        """Load an exported model after checking its manifest; raises ConfigError or ArtifactError."""
        from lmlab.serving.folder import load_model

        if slots < 1 or max_waiting < 0:
            raise ConfigError(
                f"slots={slots} and max_waiting={max_waiting} serve nobody. "
                "Give slots >= 1 and max_waiting >= 0."
            )
        prepare_process()
        model = load_model(folder, max_model_len)
        programs = Programs(model.config, model.params, slots=slots, max_length=model.max_length)
        return cls(programs, model.vocabulary, model.eos_ids, max_waiting=max_waiting)

    def warm_up(self) -> None:
        """Compile the first programs, so that no request waits for it; raises ApiError if they fail."""
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        sampling = Sampling(max_tokens=2, ignore_eos=True, temperature=0.0)
        self.submit([Ask(self.document_start(), sampling, deltas.put)])
        while not (delta := deltas.get()).is_last:
            continue
        if delta.error is not None:
            raise delta.error

    def document_start(self) -> tuple[int, ...]:
        """What an empty prompt is continued from: in training a document follows an end-of-text token."""
        return (min(self._eos_ids, default=0),)

    def submit(self, asks: Sequence[Ask]) -> list[Answer]:
        """Queue sequences, all or none, and return at once; their sinks hear the rest.

        Raises ApiError: 400 if one is too long or they can never fit, 429 if the queue is full, 503 if the
        engine has failed.
        """
        for ask in asks:
            self._check(ask)
        answers = [Answer(ask, self.vocabulary, self._eos_ids) for ask in asks]
        most = len(self._slots) + self._max_waiting
        if len(answers) > most:
            raise bad_request("n", f"{len(answers)} answers were asked for at once; this server takes {most}")
        with self._changed:
            if self._failure is not None or self._is_closing:
                raise ApiError(503, self._failure or "the server is stopping", code="engine_down")
            self._drop_cancelled()
            busy = len(self._waiting) + self._running()
            if busy + len(answers) > most:
                raise ApiError(
                    429,
                    f"the queue is full: {busy} of {most} answers are running or waiting. Try again shortly.",
                    code="queue_full",
                )
            self._waiting.extend(answers)
            self._changed.notify()
        return answers

    def state(self) -> dict[str, Any]:
        """What the engine is doing, for /health."""
        with self._changed:
            status = "ok" if self._failure is None else "failed"
            return {
                "status": status,
                "reason": self._failure,
                "running": self._running(),
                "waiting": len(self._waiting),
                "slots": len(self._slots),
                "max_waiting": self._max_waiting,
                "generated_tokens": self._generated,
            }

    def close(self) -> None:
        """End the thread after its current step; unfinished answers get a 503. Safe to call twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _check(self, ask: Ask) -> None:
        if not ask.prompt:
            raise bad_request("prompt", "the prompt has no tokens")
        length, asked = len(ask.prompt), ask.sampling.max_tokens
        if length + asked > self.max_model_len:
            raise bad_request(
                "max_tokens" if length < self.max_model_len else "prompt",
                f"the prompt's {length} tokens and max_tokens={asked} make {length + asked}, and this model "
                f"takes {self.max_model_len}. Shorten the prompt or lower max_tokens.",
                "context_length_exceeded",
            )

    def _running(self) -> int:
        return sum(answer is not None for answer in self._slots)

    def _drop_cancelled(self) -> None:
        self._waiting = deque(answer for answer in self._waiting if not answer.is_cancelled)

    def _run(self) -> None:
        """The thread: admit, prefill one chunk, decode one token for everyone, until closed."""
        try:
            while self._admit():
                self._prefill_one()
                self._decode()
        except Exception as error:  # the thread's boundary: every reader must hear of it
            logging.getLogger(__name__).exception("the engine failed")
            self._failure = f"the engine failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._fail_all(ApiError(503, self._failure or "the server is stopping", code="engine_down"))

    def _admit(self) -> bool:
        """Free ended slots, fill them from the queue, sleep while there is nothing to do; False to end."""
        with self._changed:
            while True:
                for slot, answer in enumerate(self._slots):
                    if answer is not None and (answer.is_done or answer.is_cancelled):
                        self._slots[slot] = None
                self._drop_cancelled()
                for slot, answer in enumerate(self._slots):
                    if answer is None and self._waiting:
                        self._slots[slot], self._prefilled[slot] = self._waiting.popleft(), 0
                        self._admissions += 1
                        self._admitted[slot] = self._admissions
                if self._is_closing:
                    return False
                if self._running():
                    return True
                self._changed.wait()

    def _prefill_one(self) -> None:
        """One chunk of the prompt that was admitted first: running answers wait for no more than that."""
        unread = [
            (self._admitted[slot], slot, answer)
            for slot, answer in enumerate(self._slots)
            if answer is not None and self._prefilled[slot] < len(answer.prompt)
        ]
        if not unread:
            return
        _, slot, answer = min(unread, key=lambda entry: entry[0])
        start = self._prefilled[slot]
        end = min(start + LONGEST_CHUNK, len(answer.prompt))
        following = answer.prompt[start + 1 : end + 1]
        chunk = Chunk(slot, start, answer.prompt[start:end], following, answer.sampling)
        scores = self._programs.prefill(chunk, score=answer.wants_prompt_scores())
        self._prefilled[slot] = end
        if not all(token.logprob is None or math.isfinite(token.logprob) for token in scores):
            answer.fail(_not_finite())
            return
        answer.take_scores(scores)
        if end == len(answer.prompt):
            answer.echo()
            if not answer.is_done:
                self._accept(answer, self._programs.choose(slot, answer.sampling))

    def _decode(self) -> None:
        """One token for every slot whose prompt is through."""
        ready = [
            answer is not None and not answer.is_done and self._prefilled[slot] == len(answer.prompt)
            for slot, answer in enumerate(self._slots)
        ]
        if not any(ready):
            return
        alternatives = [answer.sampling.logprobs or 0 if answer else 0 for answer in self._slots]
        picked = self._programs.decode(ready, alternatives)
        for answer, token, is_ready in zip(self._slots, picked, ready, strict=True):
            if answer is not None and is_ready:
                self._accept(answer, token)

    def _accept(self, answer: Answer, token: Token | None) -> None:
        if answer.is_done or answer.is_cancelled:
            return
        if token is None:
            answer.fail(_not_finite())
            return
        self._generated += 1
        answer.accept(token)

    def _fail_all(self, error: ApiError) -> None:
        with self._changed:
            unfinished = [*self._waiting, *(answer for answer in self._slots if answer is not None)]
            self._waiting.clear()
            self._slots = [None] * len(self._slots)
        for answer in unfinished:
            answer.fail(error)


def _not_finite() -> ApiError:
    return ApiError(
        500,
        "the model's logits are not finite (NaN or infinity), so no token can be chosen or scored: "
        "its weights are damaged or overflow in this precision",
        code="non_finite_logits",
    )
