"""Every renderer against a reviewed golden, and against records that are not what it expects."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rendered_files import GOLDENS, golden, inputs, renderer_of

from lmlab.corpus import Slice
from lmlab.corpus.reading import Record, render
from lmlab.corpus.render import GROUPS, MEMBERS, RENDERERS, ROWS

WRONG: tuple[Any, ...] = (None, 3, 1.5, True, "x", [], [1], [None], [[]], {}, [{}], {"a": 1}, "\ud800")


def documents(renderer: str, raw: Any):
    raw = [raw] if renderer in GROUPS else raw
    return list(render(Record(Slice("domain", ("*",), renderer), "name:1", raw)))


@pytest.mark.parametrize("path", inputs(), ids=lambda path: path.name)
def test_file_becomes_the_documents_that_were_reviewed(path):
    assert golden(path) == (GOLDENS / "expected" / f"{path.name}.txt").read_text()


def test_every_renderer_has_a_golden():
    assert {renderer_of(path) for path in inputs()} == set(RENDERERS)


def rows_of(renderer: str) -> list[Any]:
    path = next(path for path in inputs() if renderer_of(path) == renderer)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return [{"record": path.read_text(), "smiles": "CCO"}]


def broken(value: Any) -> Iterator[Any]:
    """A value with each part of it missing or of another type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield from ({**value, key: other} for other in (*WRONG, *broken(inner)))
    elif isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in (*WRONG, *broken(value[0])))


def refusal(renderer: str, raw: Any) -> str:
    """What a record is refused with, empty if it is rendered; any exception but ValueError goes on up."""
    try:
        texts = [found.text for found in documents(renderer, raw)]
    except ValueError as error:
        return str(error) or "a refusal that says nothing"
    assert all(isinstance(text, str) for text in texts)
    return ""


@pytest.mark.parametrize("renderer", sorted({*ROWS, *GROUPS}))
def test_row_with_a_missing_or_wrong_field_is_rendered_or_refused_in_one_line(renderer):
    others = [*WRONG, *(other for row in rows_of(renderer)[:2] for other in broken(row))]
    refusals = [refusal(renderer, other) for other in others]
    assert not [line for line in refusals if "\n" in line]
    assert sum(map(bool, refusals)) > len(WRONG) - 4


@pytest.mark.parametrize("renderer", ["swe_agent", "notebook", "coq_gym", "icons"])
def test_member_of_wrong_json_is_rendered_or_refused_in_one_line(renderer):
    path = next(path for path in inputs() if renderer_of(path) == renderer)
    others = [*WRONG[:-1], *broken(json.loads(path.read_bytes()))]
    refusals = [refusal(renderer, json.dumps(other).encode()) for other in others]
    assert not [line for line in refusals if "\n" in line]
    assert refusal(renderer, b"[]")


@pytest.mark.parametrize("renderer", sorted(MEMBERS))
@pytest.mark.parametrize(
    "data", [b"", b"\0\xff\xfe", b"{}", b".SH\n.TP\n.TS\n.de\n.if \\{\n\\f\\(", b"\n" * 9]
)
def test_member_of_junk_is_rendered_or_refused_in_one_line(renderer, data):
    assert "\n" not in refusal(renderer, data)


def test_error_names_the_field_and_what_it_is():
    with pytest.raises(ValueError, match=r"'title' is missing, not a str"):
        documents("svg", {"svg_content": "<svg/>"})
    with pytest.raises(ValueError, match=r"'merged_caption' is null, not a str"):
        documents("captions", {"merged_caption": None})
    with pytest.raises(ValueError, match=r"'text' is a list, not a str"):
        documents("document", {"text": ["a"]})


def test_field_of_ten_megabytes_goes_through_whole():
    long = "word " * 2_000_000
    (found,) = documents("chat", {"messages": [
        {"role": "user", "content": long}, {"role": "assistant", "content": "ok"}]})  # fmt: skip
    assert len(found.text) == len(long) + len("<user>\n</user>\n\n<assistant>\nok\n</assistant>\n")


def test_conversation_is_read_alike_from_openai_and_sharegpt_rows():
    call = {"name": "add", "arguments": {"a": 1}}
    openai = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "", "reasoning_content": "sum", "tool_calls": [
            {"id": "c", "function": {"name": "add", "arguments": json.dumps(call["arguments"])}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": "2"},
    ]  # fmt: skip
    sharegpt = [
        {"from": "human", "value": "1+1"},
        {"from": "gpt", "value": f"<think>sum</think>\n<tool_call>{json.dumps(call)}</tool_call>"},
        {"from": "tool", "value": "2"},
        {"from": "gpt", "value": "2"},
    ]
    ours = documents("chat", {"messages": openai})
    assert ours[0].text == documents("chat", {"conversations": sharegpt})[0].text
    assert not ours[0].reason


def test_same_call_after_news_from_its_tool_is_no_stalled_call():
    said = [{"role": "user", "content": "wait"}]
    for state in ("running", "running", "done"):
        said += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "poll", "arguments": {}}}],
            },
            {"role": "tool", "content": state if state == "done" else f"{state} {len(said)}"},
        ]
    (found,) = documents("chat", {"messages": [*said, {"role": "assistant", "content": "It is done."}]})
    assert found.reason == ""


def test_pseudonyms_are_stable_within_a_chunk_and_mean_nothing_beyond_it():
    lines = [f"{i:06d} mail from {'ann' if i % 2 else 'bob'}@example.org\n" for i in range(4000)]
    found = documents("log", "".join(lines).encode())
    assert len(found) > 1
    assert "".join(one.text for one in found).count("\n") == 4000
    for one in found:
        of = {line.split()[-1] for line in one.text.splitlines() if int(line[:6]) % 2}
        assert len(of) == 1
    swapped = documents("log", "".join(reversed(lines)).encode())
    assert {line.split()[-1] for one in swapped for line in one.text.splitlines()} == {"mail1", "mail2"}


@pytest.mark.parametrize(
    ("charset", "body"),
    [("", "D\xfcsseldorf liegt sch\xf6n"), ("; charset=us-ascii", "\xa3130million for a caf\xe9"),
     ("; charset=iso-8859-1", "that\u2019s it"), ("; charset=default_charset", "so gro\xdf wie fr\xfcher")],
)  # fmt: skip
def test_mail_without_a_true_charset_keeps_its_accents(charset, body):
    data = f"Subject: x\nContent-Type: text/plain{charset}\n\n{body}\n".encode("cp1252")
    assert documents("mail", data)[0].text == f"Subject: x\n\n{body}\n"


def test_lines_longer_than_a_chunk_stay_whole():
    found = documents("log", b"a" * 200_000 + b"\nb\n" + b"c" * 70_000)
    assert [len(one.text) for one in found] == [200_001, 2, 70_000]


# Each of these once took time by the square of its length, which here is minutes.
ENDLESS = {
    "roff names": ("man", b"\\[" * 200_000),
    "roff fonts": ("man", b"\\f[" * 200_000),
    "a mail address": ("log", b"a" * 2_000_000 + b"@"),
    "a token": ("log", b"eyJ" * 500_000),
    "clocks": ("pgn", {"record": '[Event "x"]\n' + "{ [%a " * 100_000}),
    "open slots": ("massive", {"intent": "a", "locale": "x", "utt": "u", "annot_utt": "[" * 200_000}),
    "blank slot": ("massive", {"intent": "a", "locale": "", "utt": "", "annot_utt": "[a :" + 200_000 * " "}),
    "slots": ("massive", {"intent": "a", "locale": "x", "utt": "u", "annot_utt": "[a : " * 100_000}),
    "thoughts": ("chat", {"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "<think></tool_call>" * 50_000}]}),
}  # fmt: skip


@pytest.mark.timeout(10)
@pytest.mark.parametrize("what", ENDLESS)
def test_markup_that_never_ends_is_read_in_linear_time(what):
    assert documents(*ENDLESS[what])
