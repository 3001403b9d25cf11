"""Conversations of any shape as one transcript, and why some are not worth training on.

Types that are wrong stop the build, as in every renderer; a conversation that its author broke (a call
nobody answered, one that got nowhere) is a rejected document with its reason.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import orjson

from lmlab.core.config import Json
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, own_id, scalars

SAID = ("messages", "conversations", "trajectory", "traj")
SOLVED = ("resolved", "success", "reward")
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}
ROLES |= {"function": "tool", "observation": "tool", "developer": "system"}
_KEPT = ("source", "category", "subcategory", "repo", "instance_id", "exit_status", "reward", "trial")
_MARKUP = re.compile(r"(</?(?:think|tool_call)>)")
_SLOT = re.compile(r"\[\s*([^\s:\[\]]+)\s*:([^\[\]]*)\]")


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


def chat(row: Row) -> Documents:
    """OpenAI messages, ShareGPT, Hermes, and agents' attempts: SWE-rebench, daVinci-Dev, tau-bench.

    `tools`, if there, must name every tool that is called; an attempt's first line says if it was solved.
    """
    if "messages_display" in row:  # the few-shot dialogues of tau-bench
        yield Rendered("", "en", need(row, "messages_display", str).strip() + "\n")
        return
    said = next((row[name] for name in SAID if row.get(name) is not None), None)
    solved = next((row[name] >= 1 for name in SOLVED if row.get(name) is not None), None)
    meta = scalars(row, *_KEPT) | ({} if solved is None else {"solved": solved})
    head = "" if solved is None else f"This attempt {'solved' if solved else 'did not solve'} the task.\n\n"
    tools = row.get("tools")
    tools = orjson.loads(tools) if isinstance(tools, str) and tools.strip() else tools or []
    names = {need(get(tool, "function", tool), "name", str) for tool in tools}
    part = own_id(row, "id", "trajectory_id", "instance_id", "task_id")
    yield conversation(said, meta, head, names)._replace(part=part)


def massive(row: Row) -> Documents:
    """A MASSIVE utterance and the call it asks for: the intent as function, its slots as arguments."""
    arguments: dict[str, list[str]] = {}
    for slot, value in _SLOT.findall(need(row, "annot_utt", str)):
        arguments.setdefault(slot, []).append(value.strip())
    call = _call(need(row, "intent", str), arguments)
    text = transcript([Turn("user", need(row, "utt", str)), Turn("assistant", "", calls=(call,))])
    yield Rendered(
        own_id(row), need(row, "locale", str), text, scalars(row, "intent", "scenario", "partition")
    )


def conversation(
    said: object, meta: dict[str, Json], head: str = "", tools: Set[str] = frozenset()
) -> Rendered:
    """The document of messages in any known shape; ValueError for a wrong type."""
    said = orjson.loads(said) if isinstance(said, str) else said
    if not isinstance(said, list):
        raise ValueError(f"the messages are a {type(said).__name__}, not a list")
    reason, text = "", ""
    try:
        turns = [_turn(message) for message in said]
        text = head + transcript(turns)
        check(turns, tools)
    except Unfit as error:
        reason, text = str(error), text or str(said)
    return Rendered("", None, text, meta, reason)


def _turn(message: Any) -> Turn:
    named = need(message, "role" if "role" in message else "from", str).lower()
    role = ROLES.get(named, named)
    content = message.get("content") if "content" in message else message.get("value")
    if isinstance(content, list):
        content = "\n".join(get(piece, "text", "") for piece in content)
    if not isinstance(content, str | None):
        raise ValueError(f"the content of a {role} message is a {type(content).__name__}, not text")
    content, thinking = content or "", get(message, "reasoning_content", "")
    if role != "assistant":
        return Turn(role, content.strip())
    found, content = _marked(content) if "</t" in content else ([], content)
    legacy = [message["function_call"]] if message.get("function_call") else []
    given = [*get(message, "tool_calls", []), *legacy]
    calls = [inner for tag, inner in found if tag == "tool_call"] + [
        call.get("function", call) for call in given
    ]
    thinking += "".join(inner.strip() for tag, inner in found if tag == "think")
    return Turn(role, content.strip(), thinking.strip(), tuple(_read_call(call) for call in calls))


def _marked(content: str) -> tuple[list[tuple[str, str]], str]:
    """What stands between the tags of thoughts and calls, by tag, and the rest; in linear time."""
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    held: list[str] = []
    for piece in _MARKUP.split(content):
        if held and piece == f"</{held[0][1:]}":
            found.append((held[0][1:-1], "".join(held[1:])))
            held = []
        elif held or piece in ("<think>", "<tool_call>"):
            held.append(piece)
        else:
            rest.append(piece)
    return found, "".join(rest + held)


def _read_call(call: Any) -> str:
    try:
        call = orjson.loads(call) if isinstance(call, str) else call
        arguments = call.get("arguments") or {}
        arguments = orjson.loads(arguments) if isinstance(arguments, str) else arguments
        return _call(need(call, "name", str), arguments)
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise Unfit(f"unreadable tool call: {str(error)[:80]}") from error


def _call(name: str, arguments: object) -> str:
    return orjson.dumps({"name": name, "arguments": arguments}).decode()


def transcript(turns: list[Turn]) -> str:
    """Every turn between tags of its role, thoughts and calls between their own."""
    return "".join(f"<{turn.role}>\n{_body(turn)}</{turn.role}>\n\n" for turn in turns)[:-1]


def _body(turn: Turn) -> str:
    thought = f"<think>\n{turn.thinking}\n</think>" if turn.thinking else ""
    return blocks(thought, turn.text, "\n".join(f"<tool_call>{call}</tool_call>" for call in turn.calls))


def check(turns: list[Turn], tools: Set[str]) -> None:
    """Unfit if the order, a tool or a loop makes this a conversation nobody should learn from."""
    roles = [turn.role for turn in turns]
    if "user" not in roles or "assistant" not in roles or roles.index("assistant") < roles.index("user"):
        raise Unfit("no question and answer")
    if "system" in roles[next(i for i, role in enumerate(roles) if role != "system") :]:
        raise Unfit("late system message")
    waiting = 0
    made: list[tuple[tuple[str, ...], str]] = []  # since the last word of the user: calls and their replies
    for turn in turns:
        _check_turn(turn, tools)
        if turn.role == "tool":
            waiting -= max(1, turn.text.count("<tool_response>"))
            made[-1:] = [(calls, replies + turn.text) for calls, replies in made[-1:]]
            continue
        if waiting > 0:
            raise Unfit("tool call without a reply")
        waiting = len(turn.calls)
        if len(made) == 2 and made[0] == made[1] and made[0][0] == turn.calls:
            raise Unfit("stalled tool call: a third one after two equal replies")
        made = [] if turn.role == "user" else [*made[-1:], (turn.calls, "")] if turn.calls else made


def _check_turn(turn: Turn, tools: Set[str]) -> None:
    if turn.role not in ("system", "user", "assistant", "tool"):
        raise Unfit(f"unknown role: {turn.role}")
    if not turn.text and not turn.calls and turn.role in ("user", "assistant"):
        raise Unfit(f"empty turn: {turn.role}")
    if len(set(turn.calls)) < len(turn.calls):
        raise Unfit("repeated tool call: twice in one turn")
    undefined = {orjson.loads(call)["name"] for call in turn.calls} - tools if tools else ()
    if undefined:
        raise Unfit(f"undefined tool: {min(undefined)}")
