"""The step `sample`: real completions of an exported model, from the real server, over HTTP."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmlab.artifacts import Artifact, Out, step
from lmlab.core.errors import ConfigError, StepFailed
from lmlab.serving.running import running
from lmlab.storage import write_json
from lmlab.training.steps import Exported

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Samples(Artifact):
    """Completions of one model; `samples.json` holds the texts, `timings.json` what they took."""

    requests: int
    """Completions asked for."""
    tokens: int
    """Tokens generated in all of them."""
    tokens_per_second: float
    """Tokens over the time from the first request to the last answer, one request at a time."""


@step(local_files=True)
def sample(
    out: Out,
    model: Exported,
    prompts: tuple[str, ...],
    max_tokens: int = 48,
    temperature: float = 0.8,
    seed: int = 0,
) -> Samples:
    """Serve the model in a child process and ask it to continue every prompt.

    The first answer is streamed and the second comes with log-probabilities, so that a model that only seems
    to be served is found out here. The same seed gives the same `samples.json`.
    """
    if not prompts:
        raise ConfigError("prompts is empty, so there is nothing to sample. Give at least one prompt.")
    rows, seconds = [], []
    out.status("starting the server")
    with running(model.path.local, model.address) as client:
        _check_listed(client, model.address)
        for prompt in prompts:
            # Compiles what a prompt of this length needs, so that the timings show the model at work.
            _whole(client, {"prompt": prompt, "max_tokens": 1})
        for number, prompt in enumerate(prompts):
            out.status("sampling", number, len(prompts))
            body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
            started = time.monotonic()
            if number == 0:
                row = _streamed(client, body)
            else:
                row = _whole(client, body | {"logprobs": 1 if number == 1 else None})
            seconds.append(time.monotonic() - started)
            rows.append({"prompt": prompt, **row, "endpoint": "/v1/completions"})
    write_json(out.path / "samples.json", rows)
    write_json(out.path / "timings.json", {"seconds": seconds})
    tokens = sum(row["tokens"] for row in rows)
    return Samples(requests=len(rows), tokens=tokens, tokens_per_second=tokens / sum(seconds))


def _check_listed(client: "httpx.Client", name: str) -> None:
    listed = [entry["id"] for entry in _answer(client.get("/v1/models"))["data"]]
    if listed != [name]:
        raise StepFailed(f"the server lists the models {listed}, and {name} was to be served")


def _whole(client: "httpx.Client", body: dict[str, Any]) -> dict[str, Any]:
    answer = _answer(client.post("/v1/completions", json=body))
    choice = answer["choices"][0]
    row = {
        "completion": choice["text"],
        "tokens": answer["usage"]["completion_tokens"],
        "finish_reason": choice["finish_reason"],
    }
    return row | ({"logprobs": choice["logprobs"]["token_logprobs"]} if choice["logprobs"] else {})


def _streamed(client: "httpx.Client", body: dict[str, Any]) -> dict[str, Any]:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json=asked) as response:
        if response.status_code != 200:
            response.read()
            _answer(response)
        events = list(_events(response.iter_lines()))
    choices = [choice for event in events for choice in event["choices"]]
    return {
        "completion": "".join(choice["text"] for choice in choices),
        "tokens": events[-1]["usage"]["completion_tokens"],
        "finish_reason": choices[-1]["finish_reason"],
    }


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event; an error, or an end without [DONE], is a failure."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise StepFailed(f"the stream broke off: {event['error']['message']}")
            yield event
    raise StepFailed("the stream broke off before its end")


def _answer(response: "httpx.Response") -> dict[str, Any]:
    """The JSON of a 200; anything else is a failure with the server's own words."""
    if response.status_code != 200:
        raise StepFailed(
            f"{response.request.url.path} answered {response.status_code}: {response.text[:500]}"
        )
    return response.json()
