"""The OpenAI completions protocol: bodies in, checked values out, and errors in OpenAI's shape.

An unknown field, or one that is not served, is refused by name: ignoring it would change answers silently.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmlab.core.errors import LmlabError

MOST_LOGPROBS = 128
BODY_LIMIT_BYTES = 16 * 2**20

Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0)]


class ApiError(LmlabError):
    """A request that gets an error body: HTTP status, OpenAI error type, and the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        """OpenAI's `type`: who has to act."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True)
class Sampling:
    """How one sequence is continued; with the same prompt it fixes the answer, whatever the batch holds."""

    max_tokens: int = 16
    """Tokens to generate at most; 0 only scores the prompt."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Samples from the smallest set of tokens with at least this probability, in (0, 1]."""
    seed: int = 0
    """Start of this sequence's own random stream."""
    choice: int = 0
    """Which of a request's n answers this is: each has its own stream under one seed."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are left out of it."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the text, besides end-of-text; they are left out of it."""
    ignore_eos: bool = False
    """Goes on past end-of-text tokens (for measuring speed)."""
    logprobs: int | None = None
    """Alternatives reported for each token, 0 to 128; None reports no log-probabilities."""
    echo: bool = False
    """The answer starts with the prompt, whose tokens are scored too if `logprobs` is set."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream adds."""

    include_usage: bool = False


class CompletionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/completions as it is sent; `null` means the default."""

    prompt: str | list[str | TokenId | list[TokenId]]
    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: str | None = None
    # Known to OpenAI and not served: accepted only with the value that changes nothing.
    best_of: int | None = None
    suffix: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /tokenize."""

    prompt: str
    model: str | None = None


Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """A checked request: every prompt gets `n` answers."""

    prompts: tuple[Prompt, ...]
    n: int
    sampling: Sampling
    model: str | None
    stream: bool
    include_usage: bool
    return_token_ids: bool


def decode_body(kind: type[msgspec.Struct], body: bytes) -> Any:
    """Decode a JSON body strictly.

    Raises ApiError 400 that names the field, also when the JSON itself is malformed.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(None, f"the body is not valid JSON: {error}", "malformed_json") from error


def parse_completion(body: bytes, fresh_seed: int) -> Completion:
    """Read and check the body of POST /v1/completions; `fresh_seed` is used where none is sent."""
    sent: CompletionBody = decode_body(CompletionBody, body)
    _refuse_unserved(sent)
    stop = (sent.stop,) if isinstance(sent.stop, str) else tuple(sent.stop or ())
    if "" in stop or len(stop) > 16:
        raise bad_request("stop", "stop must be up to 16 strings, none of them empty")
    stream = bool(sent.stream)
    if sent.stream_options is not None and not stream:
        raise bad_request("stream_options", "stream_options is only allowed with stream=true")
    sampling = Sampling(
        max_tokens=16 if sent.max_tokens is None else sent.max_tokens,
        temperature=1.0 if sent.temperature is None else float(sent.temperature),
        top_p=1.0 if sent.top_p is None else float(sent.top_p),
        seed=fresh_seed if sent.seed is None else sent.seed,
        stop=stop,
        stop_ids=tuple(sent.stop_token_ids or ()),
        ignore_eos=sent.ignore_eos,
        logprobs=sent.logprobs,
        echo=sent.echo,
    )
    return Completion(
        prompts=_prompts(sent.prompt),
        n=sent.n or 1,
        sampling=sampling,
        model=sent.model,
        stream=stream,
        include_usage=sent.stream_options is not None and sent.stream_options.include_usage,
        return_token_ids=sent.return_token_ids,
    )


def _prompts(sent: str | list[Any]) -> tuple[Prompt, ...]:
    """One prompt or several: a string, a list of strings, of token ids, or of lists of token ids."""
    if isinstance(sent, str):
        return (sent,)
    kinds = {type(item) for item in sent}
    if not sent or len(kinds) > 1:
        raise bad_request(
            "prompt",
            "prompt must be a string, a list of token ids, or a list of only strings or only lists of ids",
        )
    if kinds == {int}:
        return (tuple(sent),)
    return tuple(item if isinstance(item, str) else tuple(item) for item in sent)


def _refuse_unserved(sent: CompletionBody) -> None:
    neutral: dict[str, tuple[Any, ...]] = {
        "best_of": (None, sent.n or 1),
        "suffix": (None, ""),
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
        "logit_bias": (None, {}),
    }
    for name, values in neutral.items():
        value = getattr(sent, name)
        if value not in values:
            raise bad_request(name, f"{name}={value} is not served here; leave it out", "unsupported")


def _invalid(message: str) -> ApiError:
    """Turn msgspec's message into ours: 'Expected `int`, got `str` - at `$.max_tokens`' names max_tokens."""
    unknown = re.search(r"unknown field `([^`]*)`", message)
    missing = re.search(r"missing required field `([^`]*)`", message)
    place = re.search(r" - at `\$\.?([^`]*)`", message)
    if unknown:
        name = unknown[1]
        return bad_request(
            name, f"unknown field {name!r}: it would have no effect, so remove it", "unknown_field"
        )
    if missing:
        return bad_request(missing[1], f"the body lacks the required field {missing[1]!r}")
    if not place:
        return bad_request(None, message)
    field = re.split(r"[.\[]", place[1])[0]
    return bad_request(field, f"{place[1]}: {message[: place.start()].replace('`', '')}")
