"""The engine against plain forward passes without a cache, and against itself under other company."""

import queue
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmlab.core.errors import ConfigError
from lmlab.models import hf
from lmlab.models.config import Experts, Grug
from lmlab.models.decoder import forward, logits
from lmlab.serving.engine import Engine
from lmlab.serving.programs import FIRST_LENGTH, LONGEST_CHUNK
from lmlab.serving.protocol import ApiError, Sampling
from lmlab.serving.sequence import Ask

GREEDY = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
WARM = Sampling(max_tokens=12, temperature=1.0, top_p=0.9, seed=5, ignore_eos=True)


def run(engine, *asks, until=None):
    """All deltas of several sequences, submitted together."""
    queues = [queue.SimpleQueue() for _ in asks]
    engine.submit([Ask(tuple(p), s, q.put) for (p, s), q in zip(asks, queues, strict=True)])
    answers = []
    for arrived in queues:
        deltas = [arrived.get(timeout=60)]
        while not deltas[-1].is_last:
            deltas.append(arrived.get(timeout=60))
        answers.append(deltas)
    return answers


def tokens(deltas):
    return [token.id for delta in deltas for token in delta.tokens]


def reference(folder, ids):
    """Log-probabilities after every position of `ids`, from one forward pass without a cache."""
    config, params, *_ = hf.load_folder(folder)
    if isinstance(config, Grug):
        config = replace(config, experts_by=Experts.DENSE)

    @jax.jit
    def score(params, tokens):
        hidden = forward(params, config, tokens[None], dtype=jnp.float32).hidden[0]
        return jax.nn.log_softmax(logits(params, config, hidden))

    return np.array(score(params, jnp.array(ids)))


def random_prompt(length, seed=0):
    return np.random.default_rng(seed).integers(1, 320, length).tolist()


@pytest.fixture(scope="module", params=["grug", "dense"])
def named(request, folders, engine):
    """(folder, engine) of each architecture."""
    if request.param == "grug":
        yield folders["grug"], engine
        return
    other = Engine.load(folders["dense"], slots=4)
    yield folders["dense"], other
    other.close()


def test_greedy_decoding_takes_the_argmax_of_the_uncached_model_far_past_its_window(named):
    folder, engine = named
    prompt = random_prompt(5)
    [deltas] = run(engine, (prompt, replace(GREEDY, max_tokens=40, logprobs=3)))
    made = tokens(deltas)
    expected = reference(folder, prompt + made)[len(prompt) - 1 : -1]
    assert made == expected.argmax(-1).tolist()
    reported = [token.logprob for delta in deltas for token in delta.tokens]
    # float32 sums in another order
    np.testing.assert_allclose(reported, expected.max(-1), atol=2e-4)
    for delta, row in zip(deltas, expected, strict=True):
        top = delta.tokens[0].top
        assert [token for token, _ in top] == np.argsort(-row)[:3].tolist()
        assert top[0] == (delta.tokens[0].id, delta.tokens[0].logprob)


def test_a_prompt_prefilled_in_chunks_into_a_grown_cache_scores_as_in_one_pass(named):
    folder, _ = named
    prompt = random_prompt(FIRST_LENGTH + LONGEST_CHUNK // 2 + 3)
    engine = Engine.load(folder, slots=4)
    [[delta]] = run(engine, (prompt, Sampling(max_tokens=0, echo=True, logprobs=2)))
    engine.close()
    expected = reference(folder, prompt)
    assert delta.prompt[0].logprob is None
    assert [token.id for token in delta.prompt] == prompt
    own = [token.logprob for token in delta.prompt[1:]]
    np.testing.assert_allclose(own, expected[np.arange(len(prompt) - 1), prompt[1:]], atol=5e-4)
    assert delta.finish == "length"


def test_batch_mates_do_not_change_an_answer(engine):
    prompts = [random_prompt(length, seed=length) for length in (3, 30, 61, 300, 9, 17)]
    samplings = [replace(WARM, seed=number, max_tokens=5 + 3 * number) for number in range(len(prompts))]
    alone = [run(engine, ask)[0] for ask in zip(prompts, samplings, strict=True)]
    together = run(engine, *zip(prompts, samplings, strict=True))
    assert [tokens(deltas) for deltas in together] == [tokens(deltas) for deltas in alone]


def test_the_same_seed_gives_the_same_answer_and_another_seed_or_choice_another_one(engine):
    prompt = random_prompt(6)
    samplings = (WARM, WARM, replace(WARM, seed=6), replace(WARM, choice=1))
    first, again, other, second = map(tokens, run(engine, *((prompt, s) for s in samplings)))
    assert first == again
    assert len({tuple(first), tuple(other), tuple(second)}) == 3


def test_a_tiny_nucleus_is_greedy(engine):
    prompt = random_prompt(6)
    [greedy], [narrow] = run(engine, (prompt, GREEDY)), run(engine, (prompt, replace(WARM, top_p=1e-6)))
    assert tokens(greedy) == tokens(narrow)


def test_a_stop_id_ends_the_answer_and_is_counted_but_not_shown(engine):
    prompt = random_prompt(6)
    [free] = run(engine, (prompt, GREEDY))
    stop = tokens(free)[3]
    [stopped] = run(engine, (prompt, replace(GREEDY, stop_ids=(stop,))))
    made = tokens(stopped)
    assert made == tokens(free)[: made.index(stop) + 1]
    assert stopped[-1].finish == "stop"
    assert stopped[-1].text == ""


def test_a_sequence_that_would_not_fit_is_refused_with_both_numbers(engine):
    with pytest.raises(ApiError, match=r"2000 tokens and max_tokens=49 make 2049.*takes 2048") as caught:
        run(engine, (random_prompt(2000), replace(GREEDY, max_tokens=49)))
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


def test_logits_that_are_no_numbers_fail_that_answer_and_say_so(folders, tmp_path):
    config, params, *_ = hf.load_folder(folders["dense"])
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    (tmp_path / "out").mkdir()
    hf.export_folder(config, broken, folders["dense"], tmp_path / "out")
    engine = Engine.load(tmp_path / "out", slots=1)
    generated, scored = run(engine, ([1, 2, 3], GREEDY), ([1, 2], Sampling(0, echo=True, logprobs=1)))
    engine.close()
    for deltas in (generated, scored):
        assert (deltas[-1].error.status, deltas[-1].error.code) == (500, "non_finite_logits")


def test_a_cancelled_answer_leaves_its_slot_to_the_next_one(engine):
    long = Ask((1, 2, 3), replace(GREEDY, max_tokens=2000), lambda _: None)
    held = engine.submit([long] * 4)
    for answer in held:
        answer.cancel()
    [deltas] = run(engine, ([4, 5], GREEDY))
    assert len(tokens(deltas)) == 12


def test_closing_answers_what_is_unfinished(folders):
    engine = Engine.load(folders["dense"], slots=1)
    arrived = queue.SimpleQueue()
    engine.submit([Ask((1,), replace(GREEDY, max_tokens=2000), arrived.put)] * 2)
    arrived.get(timeout=60)
    engine.close()
    errors = []
    while len(errors) < 2:
        delta = arrived.get(timeout=60)
        errors += [delta.error.status] if delta.error else []
    assert errors == [503, 503]


def test_a_length_beyond_the_model_is_refused(folders):
    with pytest.raises(ConfigError, match=r"max_model_len=4096 .* 2048"):
        Engine.load(folders["dense"], max_model_len=4096)


def test_an_echoed_prompt_that_ends_within_a_character_leaves_it_to_the_answer(engine):
    [euro, *_] = engine.vocabulary.encode("€")
    [deltas] = run(engine, ([euro], replace(GREEDY, echo=True, max_tokens=1)))
    assert deltas[0].text == ""
