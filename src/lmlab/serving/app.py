"""The OpenAI-compatible HTTP app over one engine: models, completions whole or streamed, tokenize, health."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lmlab.serving import protocol
from lmlab.serving.choices import Choice
from lmlab.serving.engine import Engine
from lmlab.serving.protocol import ApiError, Completion
from lmlab.serving.sequence import Answer, Ask, Delta


def build_app(engine: Engine, name: str) -> Starlette:
    """The app that serves `engine` under the model name `name`; it closes the engine when it shuts down."""
    api = Api(engine, name)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        engine.close()

    return Starlette(
        routes=[
            Route("/v1/models", api.models),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
            Route("/tokenize", api.tokenize, methods=["POST"]),
            Route("/health", api.health),
        ],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _crash},
        lifespan=lifespan,
    )


class Api:
    """The endpoints; the only state is the engine and the name it is served under."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.started = int(time.time())

    async def models(self, _: Request) -> Response:
        """GET /v1/models, with the longest prompt plus answer that the model takes."""
        model = {
            "id": self.name,
            "object": "model",
            "created": self.started,
            "owned_by": "lmlab",
            "max_model_len": self.engine.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = protocol.parse_completion(await _read(request), fresh_seed=secrets.randbits(31))
        self._check_model(body.model)
        run = Run(self.engine, body)
        reply = Reply(self, body, run)
        if body.stream:
            # The generator may never be started if the client is gone at once: then the task frees the slots.
            return StreamingResponse(
                reply.events(), media_type="text/event-stream", background=BackgroundTask(run.cancel)
            )
        try:
            return await _unless_disconnected(request, reply.whole())
        finally:
            run.cancel()

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions: refused, since messages can't be rendered without a chat template."""
        await _read(request)
        raise protocol.bad_request(
            "messages",
            f"{self.name} has no chat template, so messages can't be turned into a prompt. "
            "Send text to /v1/completions instead.",
            "no_chat_template",
        )

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: the token ids of a text, as /v1/completions would see them."""
        body: protocol.TokenizeBody = protocol.decode_body(protocol.TokenizeBody, await _read(request))
        self._check_model(body.model)
        ids = self.engine.vocabulary.encode(body.prompt)
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": self.engine.max_model_len})

    async def health(self, _: Request) -> Response:
        """GET /health: 200 while the engine's thread lives, with what it is doing."""
        state = self.engine.state()
        return JSONResponse(state, status_code=200 if state["status"] == "ok" else 503)

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self.name:
            raise ApiError(
                404,
                f"model {asked!r} is not served here; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )


class Run:
    """The sequences of one request in the engine, and the one queue through which their deltas arrive."""

    def __init__(self, engine: Engine, body: Completion) -> None:
        loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        self.prompts = [_prompt_ids(engine, prompt) for prompt in body.prompts]

        def ask(index: int) -> Ask:
            def sink(delta: Delta) -> None:
                loop.call_soon_threadsafe(self._queue.put_nowait, (index, delta))

            sampling = replace(body.sampling, choice=index % body.n)
            return Ask(self.prompts[index // body.n], sampling, sink)

        self.count = len(self.prompts) * body.n
        self._answers: list[Answer] = engine.submit([ask(index) for index in range(self.count)])

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, delta) as they come, until every choice has ended; an error is raised."""
        unfinished = self.count
        while unfinished:
            index, delta = await self._queue.get()
            if delta.error is not None:
                raise delta.error
            unfinished -= delta.is_last
            yield index, delta

    def cancel(self) -> None:
        """Free the slots of everything unfinished."""
        for answer in self._answers:
            answer.cancel()


class Reply:
    """Turns the deltas of one run into one JSON body or into server-sent events."""

    def __init__(self, api: Api, body: Completion, run: Run) -> None:
        self._body = body
        self._run = run
        self._choices = [Choice(api.engine.vocabulary, body, index) for index in range(run.count)]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": api.name,
        }

    async def whole(self) -> Response:
        """The answer in one piece."""
        parts: list[list[Delta]] = [[] for _ in self._choices]
        async for index, delta in self._run.deltas():
            parts[index].append(delta)
        choices = [choice.render(deltas) for choice, deltas in zip(self._choices, parts, strict=True)]
        return JSONResponse({**self._head, "choices": choices, "usage": self._usage()})

    async def events(self) -> AsyncIterator[bytes]:
        """One event per delta, then the usage if asked for, then [DONE]; an error is the last event."""
        usage = {"usage": None} if self._body.include_usage else {}
        try:
            async for index, delta in self._run.deltas():
                if delta.text or delta.is_last or delta.prompt is not None or self._shows_tokens():
                    yield _event({**self._head, "choices": [self._choices[index].render([delta])], **usage})
                else:
                    self._choices[index].count(delta)
            if self._body.include_usage:
                yield _event({**self._head, "choices": [], "usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield _event(error.body())
        finally:
            self._run.cancel()

    def _shows_tokens(self) -> bool:
        return self._body.sampling.logprobs is not None or self._body.return_token_ids

    def _usage(self) -> dict[str, int]:
        prompt = sum(map(len, self._run.prompts))
        completion = sum(choice.tokens for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def _prompt_ids(engine: Engine, prompt: protocol.Prompt) -> tuple[int, ...]:
    """The tokens to continue; an empty text starts a new document, which is what follows end-of-text."""
    ids = tuple(engine.vocabulary.encode(prompt)) if isinstance(prompt, str) else prompt
    beyond = next((token for token in ids if token >= engine.vocab), None)
    if beyond is not None:
        raise protocol.bad_request(
            "prompt", f"token id {beyond} is outside the vocabulary of {engine.vocab} tokens"
        )
    return ids or engine.document_start()


def _event(data: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


async def _read(request: Request) -> bytes:
    """The body, refused as soon as it grows past the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > protocol.BODY_LIMIT_BYTES:
            raise ApiError(
                413, f"the body is larger than {protocol.BODY_LIMIT_BYTES} bytes; send fewer prompts"
            )
    return bytes(body)


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Await `work`, but give up as soon as the client hangs up."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=499)
    finally:
        working.cancel()
        watching.cancel()


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "no such endpoint", 405: "the endpoint takes another method than"}.get(
        error.status_code, error.detail
    )
    shown = ApiError(error.status_code, f"{reason}: {request.method} {request.url.path}")
    return JSONResponse(shown.body(), status_code=error.status_code, headers=error.headers)


async def _crash(_: Request, error: Exception) -> Response:
    shown = ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error")
    return JSONResponse(shown.body(), status_code=500)
