"""A model as extractor: an endpoint that behaves, some that fail as real ones do, and lmlab's own server."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmlab.core.errors import ConfigError, HostError
from lmlab.corpus.llm_extract import PROMPT, Extractor, extract_pages
from lmlab.dataflow.counters import collecting
from lmlab.serving.commands import listen
from lmlab.storage import Path

PAGES = [
    f"<html><body><nav>Menu</nav><p>Page number {n} about <b>whales</b>.</p></body></html>" for n in range(12)
]
Reply = Callable[[str], Response]


def said(text: str, ended: str = "stop") -> Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": ended}
    return JSONResponse({"choices": [choice]})


def content(prompt: str) -> str:
    """What a good model answers: the paragraph of the page."""
    found = re.search(r"<p>(.*?)</p>", prompt)
    return found[1] if found else ""


@dataclass
class Endpoint:
    """An OpenAI-compatible server whose next replies a test decides."""

    replies: list[Reply] = field(default_factory=list)
    asked: list[dict] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    url: str = ""

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.tokens.append(request.headers.get("authorization"))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        reply = self.replies.pop(0) if self.replies else lambda prompt: said(content(prompt))
        return reply(prompt)

    def extractor(self, **settings) -> Extractor:
        return Extractor(self.url, "some-model", **({"wait_s": 0.01} | settings))


def running(app, path: str = "/v1") -> Iterator[str]:
    """The address of an app on a loopback port, run by a thread."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    paths = ("/v1/chat/completions", "/v1/completions")
    for made.url in running(Starlette(routes=[Route(path, made.answer, methods=["POST"]) for path in paths])):
        yield made


@pytest.fixture
def cache(tmp_path) -> Path:
    return Path(tmp_path / "cache")


def test_answers_come_in_the_order_of_pages_and_a_bounded_number_is_under_way(endpoint, cache):
    answers = extract_pages(PAGES, endpoint.extractor(at_once=3), cache)
    assert [answer.text for answer in answers] == [f"Page number {n} about whales." for n in range(12)]
    assert not any(answer.reason for answer in answers)
    assert 1 < endpoint.most_under_way <= 3
    assert {(body["temperature"], body["max_tokens"], body["model"]) for body in endpoint.asked} == {
        (0, 4096, "some-model")
    }


def test_rerun_asks_nothing_and_another_model_or_prompt_asks_again(endpoint, cache):
    first = extract_pages(PAGES[:3], endpoint.extractor(), cache)
    assert extract_pages(PAGES[:4], endpoint.extractor(), cache)[:3] == first
    assert len(endpoint.asked) == 4
    extract_pages(PAGES[:1], endpoint.extractor(prompt="Copy: {page}"), cache)
    extract_pages(PAGES[:1], Extractor(endpoint.url, "other"), cache)
    assert len(endpoint.asked) == 6


def test_model_sees_simple_html_cut_at_its_budget(endpoint, cache):
    page = "<script>secret()</script><p class='x' onclick='y()'>" + "word " * 1000 + "</p>"
    extract_pages([page], endpoint.extractor(page_chars=200), cache)
    (body,) = endpoint.asked
    prompt = body["messages"][0]["content"]
    assert "<p>word word" in prompt
    assert "secret" not in prompt
    assert "onclick" not in prompt
    assert len(prompt) <= len(PROMPT) + 200


FAULTS = {
    "foreign words": lambda _: said("As an AI model I have summarised everything there was to say."),
    "cut off": lambda prompt: said(content(prompt), "length"),
    "empty": lambda _: said("  "),
    "no answer": lambda _: Response(b"<html>Bad gateway</html>"),
    "no answer ": lambda _: JSONResponse({"choices": []}),
    "no answer  ": lambda _: JSONResponse({"error": {"message": "context too long"}}, 400),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_answer_that_is_not_the_pages_is_rejected_and_counted(endpoint, cache, kind):
    endpoint.replies = [FAULTS[kind]]
    tally = {}
    with collecting(tally):
        bad, good = extract_pages(PAGES[:2], endpoint.extractor(at_once=1), cache)
    assert bad.reason.partition(":")[0] == kind.strip()
    assert good.reason == ""
    assert {name: n for name, (_, n, _) in tally.items()} == {
        "llm requests": 2, f"llm {kind.strip()}": 1, "llm kept": 1,
    }  # fmt: skip


def test_what_was_no_answer_is_asked_again_by_the_next_run(endpoint, cache):
    endpoint.replies = [FAULTS["no answer"]]
    assert extract_pages(PAGES[:1], endpoint.extractor(), cache)[0].reason
    assert extract_pages(PAGES[:1], endpoint.extractor(), cache)[0].reason == ""


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_busy_endpoint_is_asked_again(endpoint, cache, status):
    endpoint.replies = [lambda _: Response("busy", status)] * 3
    assert extract_pages(PAGES[:1], endpoint.extractor(), cache)[0].text == "Page number 0 about whales."
    assert len(endpoint.asked) == 4


def test_retry_after_is_kept_to(endpoint, cache):
    endpoint.replies = [lambda _: Response("busy", 429, {"Retry-After": "1"})]
    started = time.monotonic()
    extract_pages(PAGES[:1], endpoint.extractor(wait_s=0), cache)
    assert time.monotonic() - started >= 1


def test_endpoint_that_asks_for_an_hour_is_left_at_once(endpoint, cache):
    endpoint.replies = [lambda _: Response("busy", 429, {"Retry-After": "3600"})]
    with pytest.raises(HostError, match="gave no answer in 1 tries"):
        extract_pages(PAGES[:1], endpoint.extractor(), cache)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refusal_is_never_asked_again(endpoint, cache, status):
    endpoint.replies = [lambda _: JSONResponse({"error": "no\nentry"}, status)] * 9
    with pytest.raises(
        ConfigError, match=rf"refuses some-model \({status}: .*no.*entry.*Correct url, model or token"
    ) as told:
        extract_pages(PAGES[:1], endpoint.extractor(), cache)
    assert len(endpoint.asked) == 1
    assert "\n" not in str(told.value)


def test_token_is_sent_but_stands_nowhere(endpoint, cache, monkeypatch):
    monkeypatch.setenv("ENDPOINT_TOKEN", "sk-very-secret")
    extractor = endpoint.extractor(token=("env:ENDPOINT_TOKEN",))
    extract_pages(PAGES[:1], extractor, cache)
    assert endpoint.tokens == ["Bearer sk-very-secret"]
    endpoint.replies = [lambda _: Response("no", 401)]
    with pytest.raises(ConfigError) as told:
        extract_pages(PAGES[1:2], extractor, cache)
    assert "sk-very-secret" not in str(told.value) + repr(extractor)
    assert not any(b"sk-very-secret" in path.read_bytes() for path in cache.walk())


def test_endpoint_that_stays_busy_ends_the_run_and_what_it_answered_is_kept(endpoint, cache):
    endpoint.replies = [lambda prompt: said(content(prompt))] + [lambda _: Response("busy", 503)] * 2
    with pytest.raises(HostError, match=r"gave no answer in 2 tries \(the last: 503: busy\)"):
        extract_pages(PAGES[:2], endpoint.extractor(at_once=1, tries=2), cache)
    assert len(extract_pages(PAGES[:2], endpoint.extractor(), cache)) == 2
    assert len(endpoint.asked) == 4


def test_endpoint_that_is_not_there_is_named(cache):
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    extractor = Extractor(f"http://127.0.0.1:{port}/v1", "m", tries=2, wait_s=0.01)
    with pytest.raises(
        HostError, match=rf"127\.0\.0\.1:{port}/v1/chat/completions gave no answer in 2 tries"
    ):
        extract_pages(PAGES[:1], extractor, cache)


def test_endpoint_that_hangs_is_left_after_the_limit(cache):
    async def hang(_: Request) -> Response:
        await asyncio.sleep(1)
        return Response("late")

    for url in running(Starlette(routes=[Route("/v1/chat/completions", hang, methods=["POST"])])):
        started = time.monotonic()
        with pytest.raises(HostError, match="Timeout"):
            extract_pages(PAGES[:1], Extractor(url, "m", tries=2, wait_s=0, total_s=0.1), cache)
        assert time.monotonic() - started < 0.9


def test_prompt_without_a_page_is_refused():
    with pytest.raises(ConfigError, match=r"holds no \{page\}"):
        Extractor("http://x/v1", "m", prompt="Extract!")


def test_no_pages_ask_nothing(endpoint, cache):
    assert extract_pages([], endpoint.extractor(), cache) == []
    assert endpoint.asked == []


@pytest.fixture(scope="module")
def own_server(tmp_path_factory) -> Iterator[str]:
    """lmlab's server with a small model of random weights: real, and of no use."""
    import json

    import jax
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from lmlab.models import hf
    from lmlab.models.config import Dense
    from lmlab.models.decoder import init_params
    from lmlab.serving.app import build_app
    from lmlab.serving.engine import Engine

    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(PAGES, trainer)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(about))
    config = Dense(vocab=300, hidden=32, layers=1, heads=2, kv_heads=1, mlp_width=32, max_seq=1024)
    hf.export_folder(config, init_params(config, jax.random.key(0)), folder / "tokenizer", folder / "model")
    engine = Engine.load(folder / "model", slots=4, max_waiting=4)
    yield from running(build_app(engine, "tiny@1"))
    engine.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_own_server_answers_and_a_model_that_knows_nothing_is_not_believed(own_server, cache):
    extractor = Extractor(own_server, "tiny@1", endpoint="completions", max_tokens=12, wait_s=0.1)
    tally = {}
    with collecting(tally):
        answers = extract_pages(PAGES[:6], extractor, cache)
    kinds = {answer.reason.partition(":")[0] for answer in answers}
    assert kinds <= {"cut off", "foreign words", "empty"}
    assert extract_pages(PAGES[:6], extractor, cache) == answers
    assert tally["llm requests"][1] >= 6
    with pytest.raises(ConfigError, match="model 'other' is not served here"):
        extract_pages(PAGES[:1], Extractor(own_server, "other", endpoint="completions"), cache)
    (answer,) = extract_pages(PAGES[:1], Extractor(own_server, "tiny@1", tries=1), cache)
    assert "has no chat template" in answer.reason
