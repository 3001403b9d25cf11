"""Conversations of any shape as one transcript, and the reasons why some are not worth training on.

Types that are wrong stop the build, as in every renderer; a conversation that its author broke (a call
nobody answered, one that got nowhere) is a rejected document with its reason.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from lmlab.core.config import Json
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, number, own_id, scalars

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "function": "tool",
    "observation": "tool",
    "developer": "system",
}
_MARKUP = re.compile(r"<(think|tool_call)>(.*?)</\1>\s*", re.DOTALL)
_SLOT = re.compile(r"\[\s*([^\s:\]]+)\s*:\s*([^\]]*?)\s*\]")


@dataclass(frozen=True)
class Turn:
    """One message in the one shape that all others are read into."""

    role: str
    text: str
    thinking: str = ""
    calls: tuple[str, ...] = ()
    """Canonical JSON of each tool call: {"name": …, "arguments": {…}}."""


class Unfit(Exception):
    """A conversation that can be read but teaches nothing good; the message is the reason."""


def messages(row: Row) -> Documents:
    """OpenAI messages, with `tools` and `tool_calls` where there are any."""
    yield conversation(row, row.get("messages"), scalars(row, "source", "category"))


def sharegpt(row: Row) -> Documents:
    """ShareGPT and Hermes rows: `conversations` of from/value, thoughts and calls as markup in the text."""
    yield conversation(row, row.get("conversations"), scalars(row, "source", "category", "subcategory"))


def tau_bench(row: Row) -> Documents:
    """A tau-bench trajectory and whether it earned its reward, or a few-shot dialogue as displayed."""
    if "messages_display" in row:
        yield Rendered("", "en", need(row, "messages_display", str).strip() + "\n")
        return
    reward = number(row, "reward")
    part = f"{own_id(row, 'task_id')}.{own_id(row, 'trial')}"
    yield conversation(row, row.get("traj"), {"reward": reward}, reward >= 1)._replace(part=part)


def massive(row: Row) -> Documents:
    """A MASSIVE utterance and the call it asks for: the intent as function, its slots as arguments."""
    arguments: dict[str, list[str]] = {}
    for slot, value in _SLOT.findall(need(row, "annot_utt", str)):
        arguments.setdefault(slot, []).append(value)
    call = _call(need(row, "intent", str), arguments)
    text = transcript([Turn("user", need(row, "utt", str)), Turn("assistant", "", calls=(call,))])
    yield Rendered(
        own_id(row), need(row, "locale", str), text, scalars(row, "intent", "scenario", "partition")
    )


def conversation(
    row: Row, said: object, meta: dict[str, Json], is_solved: bool | None = None, head: str = ""
) -> Rendered:
    """The document of a conversation; `is_solved`, if known, is its first line and stands in its meta."""
    if is_solved is not None:
        head = f"This attempt {'solved' if is_solved else 'did not solve'} the task.\n\n{head}"
        meta = {**meta, "solved": is_solved}
    tools = row.get("tools")
    tools = orjson.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    reason, text = "", ""
    try:
        turns = read_turns(said)
        text = head + transcript(turns)
        check(turns, _names(tools) if isinstance(tools, list) and tools else None)
    except Unfit as error:
        reason, text = str(error), text or str(said)
    return Rendered(own_id(row, "id", "trajectory_id", "instance_id"), None, text, meta, reason)


def read_turns(said: object) -> list[Turn]:
    """Messages in any of the known shapes; ValueError for a wrong type, Unfit for markup that is broken."""
    said = orjson.loads(said) if isinstance(said, str) else said
    if not isinstance(said, list):
        raise ValueError(f"the messages are {type(said).__name__}, not a list")
    return [_turn(message) for message in said]


def _turn(message: Any) -> Turn:
    named = need(message, "role" if "role" in message else "from", str).lower()
    role = ROLES.get(named, named)
    content = message.get("content") if "content" in message else message.get("value")
    if isinstance(content, list):
        content = "\n".join(get(piece, "text", "") for piece in content)
    if not isinstance(content, str | None):
        raise ValueError(f"the content of a {role} message is a {type(content).__name__}, not text")
    content, thinking, calls = content or "", get(message, "reasoning_content", ""), []
    if role == "assistant":
        for tag, inner in _MARKUP.findall(content) if "</t" in content else ():
            if tag == "think":
                thinking += inner.strip()
            else:
                calls.append(_read_call(inner))
        content = _MARKUP.sub("", content) if thinking or calls else content
        legacy = [message["function_call"]] if message.get("function_call") else []
        given = [*get(message, "tool_calls", []), *legacy]
        calls += [_read_call(call.get("function", call)) for call in given]
    return Turn(role, content.strip(), thinking.strip(), tuple(calls))


def _read_call(call: Any) -> str:
    try:
        call = orjson.loads(call) if isinstance(call, str) else call
        arguments = call.get("arguments")
        arguments = orjson.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise Unfit(f"unreadable tool call: {str(error)[:80]}") from error
    return _call(need(call, "name", str), arguments)


def _call(name: str, arguments: object) -> str:
    return orjson.dumps({"name": name, "arguments": arguments}).decode()


def transcript(turns: list[Turn]) -> str:
    """Every turn between tags of its role, thoughts and calls between their own."""
    return "".join(f"<{turn.role}>\n{_body(turn)}</{turn.role}>\n\n" for turn in turns)[:-1]


def _body(turn: Turn) -> str:
    thought = f"<think>\n{turn.thinking}\n</think>" if turn.thinking else ""
    calls = "\n".join(f"<tool_call>{call}</tool_call>" for call in turn.calls)
    return blocks(thought, turn.text, calls)


def check(turns: list[Turn], tools: set[str] | None) -> None:
    """Unfit if the order, a tool or a loop makes this a conversation nobody should learn from."""
    waiting = 0
    made: list[tuple[tuple[str, ...], str]] = []
    is_begun = False
    for turn in turns:
        if turn.role == "system" and is_begun:
            raise Unfit("late system message")
        is_begun = is_begun or turn.role != "system"
        if turn.role not in ("system", "user", "assistant", "tool"):
            raise Unfit(f"unknown role: {turn.role}")
        if not turn.text and not turn.calls and turn.role in ("user", "assistant"):
            raise Unfit(f"empty turn: {turn.role}")
        if turn.role == "tool":
            waiting -= max(1, turn.text.count("<tool_response>"))
            made[-1:] = [(made[-1][0], made[-1][1] + turn.text)] if made else []
        elif waiting > 0:
            raise Unfit("tool call without a reply")
        waiting = max(0, waiting) + len(turn.calls)
        _check_calls(turn, tools)
        if turn.role == "user":
            made = []
        elif turn.calls:
            if len(made) > 1 and made[-1] == made[-2] and made[-1][0] == turn.calls:
                raise Unfit("stalled tool call: a third one after two equal replies")
            made.append((turn.calls, ""))
    roles = [turn.role for turn in turns]
    if "user" not in roles or "assistant" not in roles or roles.index("assistant") < roles.index("user"):
        raise Unfit("no question and answer")


def _check_calls(turn: Turn, tools: set[str] | None) -> None:
    if len(set(turn.calls)) < len(turn.calls):
        raise Unfit("repeated tool call: twice in one turn")
    unknown = {orjson.loads(call)["name"] for call in turn.calls} - tools if tools is not None else ()
    if unknown:
        raise Unfit(f"undefined tool: {min(unknown)}")


def _names(tools: list[Row]) -> set[str]:
    return {need(get(tool, "function", tool), "name", str) for tool in tools}
