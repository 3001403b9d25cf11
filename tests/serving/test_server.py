"""The endpoint as a client sees it, over a real loopback connection."""

import json
import threading
import time

import httpx
import pytest

from lmlab.serving.engine import Engine
from lmlab.serving.protocol import Sampling
from lmlab.serving.sequence import Ask

PROMPT = "The quick brown"


def complete(client, **body):
    response = client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def text(client, **body):
    return complete(client, **body)["choices"][0]["text"]


def stream(client, **body):
    """All events of a streamed completion; the last line must be [DONE]."""
    sent = {"prompt": PROMPT, "temperature": 0, "stream": True, **body}
    with client.stream("POST", "/v1/completions", json=sent) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refused(client, path="/v1/completions", **body):
    response = client.post(path, json={"prompt": PROMPT, **body})
    assert 400 <= response.status_code < 500
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error


def test_models_lists_the_model_with_its_length(client):
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["object"]) == ("tiny@1", 2048, "model")


def test_a_completion_has_openais_shape_and_counts_its_tokens(client):
    answer = complete(client, max_tokens=7, ignore_eos=True)
    [choice] = answer["choices"]
    assert answer["object"] == "text_completion"
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    prompt = client.post("/tokenize", json={"prompt": PROMPT}).json()
    assert answer["usage"] == {
        "prompt_tokens": prompt["count"],
        "completion_tokens": 7,
        "total_tokens": prompt["count"] + 7,
    }


def test_text_and_its_token_ids_are_the_same_prompt(client):
    ids = client.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert text(client) == text(client, prompt=ids) == text(client, prompt=[ids])


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 40, "ignore_eos": True},
        {"max_tokens": 30, "temperature": 1.0, "seed": 3, "logprobs": 2},
        {"max_tokens": 20, "temperature": 1.0, "seed": 4, "n": 3},
        {"max_tokens": 20, "echo": True, "logprobs": 1},
        {"max_tokens": 20, "prompt": ["Grüße aus", "def main"], "return_token_ids": True},
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(client, body):
    whole = complete(client, **body)
    events = stream(client, **body, stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"]:
            for column, values in choice["logprobs"].items():
                assert [value for part in parts for value in part["logprobs"][column]] == values
        if "token_ids" in choice:
            assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]


def test_streamed_text_never_holds_a_broken_character(client, engine):
    body = {"prompt": "Grüße", "max_tokens": 120, "temperature": 1.5, "seed": 11, "ignore_eos": True}
    [choice] = complete(client, **body, return_token_ids=True)["choices"]
    pieces = b"".join(engine.vocabulary.visible(token) for token in choice["token_ids"])
    streamed = "".join(c["text"] for event in stream(client, **body) for c in event["choices"])
    assert streamed == choice["text"]
    whole = pieces.decode(errors="replace")
    assert whole.startswith(streamed)
    assert len(whole) - len(streamed) <= 1  # a character cut by max_tokens is left out


def test_echo_with_logprobs_scores_the_prompt_with_the_texts_own_offsets(client):
    answer = complete(client, prompt="def main():\n", max_tokens=0, echo=True, logprobs=2)
    [choice] = answer["choices"]
    table = choice["logprobs"]
    assert choice["text"] == "def main():\n" == "".join(table["tokens"])
    assert table["token_logprobs"][0] is None
    assert table["top_logprobs"][0] is None
    assert all(value < 0 for value in table["token_logprobs"][1:])
    assert table["text_offset"][0] == 0
    for token, offset in zip(table["tokens"], table["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert answer["usage"]["completion_tokens"] == 0


def test_a_greedy_token_is_the_first_of_its_top_logprobs_to_the_last_bit(client):
    [choice] = complete(client, max_tokens=10, logprobs=3)["choices"]
    for own, top in zip(
        choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
    ):
        assert own == max(top.values())  # lm-eval compares exactly like this


def test_logprobs_0_gives_the_tokens_own_only(client):
    [choice] = complete(client, max_tokens=3, logprobs=0)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1, 1, 1]


def test_n_answers_differ_and_the_first_is_that_of_n_1(client):
    body = {"max_tokens": 20, "temperature": 1.0, "seed": 9}
    four = [choice["text"] for choice in complete(client, n=4, **body)["choices"]]
    assert len(set(four)) == 4
    assert four == [choice["text"] for choice in complete(client, n=4, **body)["choices"]]
    assert four[0] == text(client, **body)


def test_a_seed_that_is_not_sent_is_fresh_each_time(client):
    texts = {text(client, max_tokens=20, temperature=1.0) for _ in range(3)}
    assert len(texts) == 3


def test_text_ends_before_a_stop_string_that_spans_tokens(client):
    free = text(client, max_tokens=40, ignore_eos=True)
    for start in range(3, 12):
        stop = free[start : start + 5]
        answer = complete(client, max_tokens=40, ignore_eos=True, stop=["never met", stop])
        [choice] = answer["choices"]
        assert choice["text"] == free[: free.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] <= 40


def test_an_empty_prompt_starts_a_new_document(client, engine):
    assert text(client, prompt="") == text(client, prompt=list(engine.document_start()))


def test_what_does_not_fit_is_a_400_with_both_numbers(client):
    status, error = refused(client, prompt=[5] * 2000, max_tokens=100)
    assert (status, error["param"]) == (400, "max_tokens")
    assert "2100" in error["message"]
    assert "2048" in error["message"]


def test_a_token_id_outside_the_vocabulary_is_named(client):
    status, error = refused(client, prompt=[5, 320])
    assert (status, error["param"]) == (400, "prompt")
    assert "320" in error["message"]


def test_malformed_json_is_a_400(client):
    response = client.post("/v1/completions", content=b'{"prompt": "x"')
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_an_unknown_model_is_a_404_naming_the_one_that_is_served(client):
    status, error = refused(client, model="gpt-4")
    assert (status, error["code"]) == (404, "model_not_found")
    assert "tiny@1" in error["message"]


def test_messages_are_refused_for_want_of_a_template(client):
    status, error = refused(client, "/v1/chat/completions", messages=[])
    assert status == 400
    assert "no chat template" in error["message"]


def test_an_unknown_path_and_a_wrong_method_get_openais_error_shape(client):
    assert client.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    response = client.get("/v1/completions")
    assert response.status_code == 405
    assert response.json()["error"]["message"]


def test_a_body_without_end_is_refused_early(client):
    chunks = (b" " * 2**20 for _ in range(64))
    response = client.post("/v1/completions", content=chunks)
    assert response.status_code == 413


def test_a_full_queue_is_a_429_with_retry_after_and_empties_again(client, engine: Engine):
    gate = threading.Event()
    sampling = Sampling(max_tokens=4, ignore_eos=True)
    engine.submit([Ask((1,), sampling, lambda _: gate.wait(30) and None)] * 8)  # 4 slots, 4 waiting
    try:
        response = client.post("/v1/completions", json={"prompt": "x"})
    finally:
        gate.set()
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    wait_until_idle(client)
    assert text(client, max_tokens=2) == text(client, max_tokens=2)


def test_more_answers_than_can_ever_fit_are_a_400(client):
    assert refused(client, n=9)[0] == 400


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_frees_its_slot(client, streamed):
    wait_until_idle(client)
    before = client.get("/health").json()["generated_tokens"]
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": streamed}
    if streamed:
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=0.2)
    assert wait_until_idle(client)["generated_tokens"] - before < 2000


def test_many_clients_at_once_all_get_the_answer_they_would_get_alone(client):
    bodies = [
        {"prompt": PROMPT[: 1 + i], "max_tokens": 3 + i, "temperature": 1.0, "seed": i} for i in range(8)
    ]
    alone = [text(client, **body) for body in bodies]
    together: dict[int, str] = {}

    def ask(number):
        together[number] = text(client, **bodies[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(8)] == alone


def wait_until_idle(client):
    deadline = time.monotonic() + 30
    while (state := client.get("/health").json())["running"] + state["waiting"]:
        assert time.monotonic() < deadline, state
        time.sleep(0.02)
    return state
