"""How software comes about: pull requests, reviews and what answers them, agents at work, tests that run."""

from typing import Any

import orjson

from lmlab.corpus.render.chat import conversation
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, own_id, scalars


def pull_request(row: Row) -> Documents:
    """A daVinci-Dev pull request: repository, issue, request, summary, the files it touches, its edits."""
    issue = get(row, "related_issue", {})
    said = [f"### {get(c, 'author', 'somebody')}\n{get(c, 'body', '')}" for c in get(issue, "comments", [])]
    files = [_fenced(file["path"], get(file, "content", "")) for file in get(row, "relevant_files", [])]
    edits = [_commit(commit) for commit in get(row, "commits", [])]
    text = blocks(
        f"# Repository {need(row, 'repo_name', str)}\n{get(row, 'repo_description', '')}",
        blocks(f"# Issue: {get(issue, 'title', '')}\n{get(issue, 'body', '')}", *said) if issue else "",
        f"# Pull request: {need(row, 'title', str)}\n{get(row, 'body', '')}",
        f"# Summary\n{row['pr_summary']}" if row.get("pr_summary") else "",
        blocks("# Files", *files) if files else "",
        blocks("# Edits", *edits) if edits else "",
    )
    yield Rendered(own_id(row, "id", "pr_id", "number"), None, text, scalars(row, "repo_name", "license"))


def review(row: Row) -> Documents:
    """Review comments, each group with the first later commit that touches what they are about.

    A row is one pull request: `repo_name`, `title`, `comments` (path, body, diff_hunk, created_at) and
    `commits` (message, created_at, diffs of path and patch). A comment nobody acted on makes no document.
    """
    commits = sorted(need(row, "commits", list), key=lambda commit: need(commit, "created_at", str))
    answered: dict[int, list[Row]] = {}
    for comment in need(row, "comments", list):
        path, made = need(comment, "path", str), need(comment, "created_at", str)
        later = (i for i, c in enumerate(commits) if c["created_at"] > made and path in _paths(c))
        if (answer := next(later, None)) is not None:
            answered.setdefault(answer, []).append(comment)
    for index, comments in sorted(answered.items()):
        paths = {comment["path"] for comment in comments}
        asked = [
            f"{_fenced('Review of ' + c['path'], get(c, 'diff_hunk', ''), 'diff')}\n{need(c, 'body', str)}"
            for c in comments
        ]
        diffs = [diff for diff in commits[index]["diffs"] if diff["path"] in paths]
        answer_text = f"# Follow-up\n{_commit({**commits[index], 'diffs': diffs})}"
        text = blocks(f"# {need(row, 'repo_name', str)}: {get(row, 'title', '')}", *asked, answer_text)
        yield Rendered(f"{own_id(row, 'id', 'number')}.{index}", None, text, scalars(row, "repo_name"))


def _paths(commit: Row) -> set[str]:
    return {diff["path"] for diff in get(commit, "diffs", [])}


def _commit(commit: Row) -> str:
    diffs = [_fenced(diff["path"], get(diff, "patch", ""), "diff") for diff in get(commit, "diffs", [])]
    return blocks(get(commit, "refined_message", "") or get(commit, "message", ""), *diffs).strip("\n")


def _fenced(path: str, content: str, language: str = "") -> str:
    body = content.strip("\n")
    return f"## {path}\n```{language}\n{body}\n```" if body else f"## {path}"


# Where the words of each kind of event stand in its payload.
_EVENTS = {
    "IssuesEvent": "issue.title issue.body",
    "IssueCommentEvent": "issue.title comment.body",
    "PullRequestEvent": "pull_request.title pull_request.body",
    "PullRequestReviewEvent": "pull_request.title review.state review.body",
    "PullRequestReviewCommentEvent": "pull_request.title comment.path comment.diff_hunk comment.body",
    "CommitCommentEvent": "comment.path comment.body",
    "ReleaseEvent": "release.name release.tag_name release.body",
    "CreateEvent": "ref_type ref description",
    "DeleteEvent": "ref_type ref",
    "ForkEvent": "forkee.description",
    **dict.fromkeys(("PushEvent", "WatchEvent", "MemberEvent", "PublicEvent", "GollumEvent"), ""),
}


def gh_archive(row: Row) -> Documents:
    """One GH Archive event in words: what happened where, then its titles, texts, hunks and messages.

    Who did it is left out; what a bot did is rejected.
    """
    kind, payload = need(row, "type", str), get(row, "payload", {})
    lines = [f"{kind} {get(payload, 'action', '')}".strip() + f" in {need(row['repo'], 'name', str)}"]
    for path in _EVENTS.get(kind, "").split():
        value: Any = payload
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        lines.append(value if isinstance(value, str) else "")
    lines += [get(commit, "message", "") for commit in get(payload, "commits", [])]
    lines += [get(page, "title", "") for page in get(payload, "pages", [])]
    is_bot = get(get(row, "actor", {}), "login", "").endswith("[bot]")
    reason = "bot" if is_bot else "" if kind in _EVENTS else f"unknown event: {kind}"
    yield Rendered(own_id(row), None, blocks(*lines), {"type": kind}, reason)


def swe_agent(_name: str, data: bytes) -> Documents:
    """A SWE-agent .traj: the task, then thought, action and observation of each step, then the patch.

    All dialects (function calling, XML, plain) have the same steps; a demonstration has messages only.
    """
    loaded = orjson.loads(data)
    info, history, steps = get(loaded, "info", {}), get(loaded, "history", []), get(loaded, "trajectory", [])
    meta = scalars(info, "exit_status")
    if not steps:
        yield conversation(history, meta)
        return
    task = next((m["content"] for m in history if m["role"] == "user" and not m.get("is_demo")), "")
    task = task if isinstance(task, str) else "\n".join(piece["text"] for piece in task)
    pieces = [_tagged("task", task)]
    for step in steps:
        observed = _tagged("observation", get(step, "observation", ""))
        pieces += [get(step, "thought", "").strip(), _tagged("action", need(step, "action", str)), observed]
    patch = get(info, "submission", "")
    text = blocks(*pieces, _tagged("submission", patch) if patch.strip() else "")
    yield Rendered("", None, text, meta)


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text.strip()}\n</{tag}>"


def execution_trace(row: Row) -> Documents:
    """A test, every line that ran and what it changed, and the outcome: what `tracing.trace_tests` writes."""
    trace = "\n".join(need(row, "trace", list))
    text = blocks(
        f"# {need(row, 'test', str)}: {need(row, 'outcome', str)}",
        f"```python\n{need(row, 'source', str)}```",
        f"```trace\n{trace}\n```",
        f"# cut after {row['events']} lines" if row.get("is_cut") else "",
    )
    yield Rendered(row["test"], None, text, scalars(row, "outcome", "is_cut", "has_network"))
