"""Bodies of /v1/completions: what is taken, and that what is refused is refused by the name of its field."""

import json

import pytest
from hypothesis import given, strategies as st

from lmlab.serving.protocol import ApiError, parse_completion


def parse(**body):
    return parse_completion(json.dumps(body).encode(), fresh_seed=77)


def refused(**body) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("hello", ("hello",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ("", ("",)),
    ],
)
def test_a_prompt_is_text_or_token_ids_or_a_list_of_either(sent, prompts):
    assert parse(prompt=sent).prompts == prompts


def test_defaults_are_those_of_openai():
    sampling = parse(prompt="x").sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.logprobs) == (
        16,
        1.0,
        1.0,
        None,
    )
    assert sampling.seed == 77


def test_null_means_the_default():
    assert parse(prompt="x", max_tokens=None, stop=None, seed=None, stream=None) == parse(prompt="x")


def test_logprobs_0_is_not_the_same_as_no_logprobs():
    assert parse(prompt="x", logprobs=0).sampling.logprobs == 0
    assert parse(prompt="x", logprobs=None).sampling.logprobs is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "many"),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 3),
        ("top_p", 0),
        ("top_p", 1.5),
        ("n", 0),
        ("stop", ""),
        ("stop", ["a", 3]),
        ("stop", ["x"] * 17),
        ("logprobs", 500),
        ("logprobs", True),
        ("prompt", []),
        ("prompt", ["a", 3]),
        ("prompt", [-1]),
        ("prompt", {"text": "a"}),
        ("seed", 1.5),
        ("presence_penalty", 0.5),
        ("logit_bias", {"5": -100}),
        ("best_of", 3),
        ("suffix", "end"),
        ("stream_options", {"include_usage": True}),
        ("temprature", 0.5),
    ],
)
def test_a_bad_field_is_named(field, value):
    error = refused(**{"prompt": "x", field: value})
    assert error.param == field
    assert field in str(error)


def test_values_that_change_nothing_are_taken():
    parse(prompt="x", presence_penalty=0, frequency_penalty=0.0, logit_bias={}, best_of=2, n=2, suffix=None)


def test_a_missing_prompt_is_named():
    assert refused(max_tokens=3).param == "prompt"


@given(st.binary(max_size=40))
def test_bytes_that_are_no_json_get_a_400(body):
    with pytest.raises(ApiError) as caught:
        parse_completion(body, fresh_seed=0)
    assert caught.value.status == 400
