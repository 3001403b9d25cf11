"""Attempts of coding agents (SWE-agent, SWE-rebench, daVinci-Dev), and traces of tests that ran."""

import orjson

from lmlab.corpus.render.chat import conversation
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, scalars


def swe_agent(_name: str, data: bytes) -> Documents:
    """A SWE-agent .traj: the task, then thought, action and observation of each step, then the patch.

    All dialects (function calling, XML, plain) have the same steps; a demonstration has messages only.
    """
    loaded = orjson.loads(data)
    info, history = get(loaded, "info", {}), get(loaded, "history", [])
    meta = scalars(info, "exit_status")
    steps = get(loaded, "trajectory", [])
    if not steps:
        yield conversation(loaded, history, meta)
        return
    task = next((m["content"] for m in history if m["role"] == "user" and not m.get("is_demo")), "")
    if isinstance(task, list):
        task = "\n".join(get(piece, "text", "") for piece in task)
    text = blocks(f"<task>\n{task.strip()}\n</task>", *map(_step, steps), _patch(get(info, "submission", "")))
    yield Rendered("", None, text, meta)


def _step(step: Row) -> str:
    action = need(step, "action", str).strip()
    observed = get(step, "observation", "").strip()
    return blocks(
        get(step, "thought", "").strip(),
        f"<action>\n{action}\n</action>",
        f"<observation>\n{observed}\n</observation>",
    )


def _patch(patch: str) -> str:
    return f"<submission>\n{patch.strip()}\n</submission>" if patch.strip() else ""


def swe_rebench(row: Row) -> Documents:
    """A SWE-rebench trajectory (OpenHands): messages, and whether the tests passed in the end."""
    resolved = row.get("resolved")
    is_solved = None if resolved is None else bool(resolved)
    yield conversation(
        row, row.get("trajectory"), scalars(row, "instance_id", "repo", "exit_status"), is_solved
    )


def davinci_env(row: Row) -> Documents:
    """A daVinci-Dev rollout in a real repository, and whether it succeeded."""
    success = row.get("success")
    is_solved = None if success is None else bool(success)
    yield conversation(row, row.get("messages"), scalars(row, "instance_id"), is_solved)


def execution_trace(row: Row) -> Documents:
    """A test, every line that ran and what it changed, and the outcome: what `tracing.trace_tests` writes."""
    head = f"# {need(row, 'test', str)}: {need(row, 'outcome', str)}"
    cut = f"# cut after {need(row, 'events', int)} lines" if row.get("is_cut") else ""
    trace = "\n".join(need(row, "trace", list))
    text = blocks(head, f"```python\n{need(row, 'source', str)}```", f"```trace\n{trace}\n```", cut)
    yield Rendered(row["test"], None, text, scalars(row, "outcome", "is_cut", "has_network"))
