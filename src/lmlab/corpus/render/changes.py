"""How software changes: pull requests, reviews with the commits that answer them, events of GH Archive."""

from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, own_id, scalars


def pull_request(row: Row) -> Documents:
    """A daVinci-Dev pull request: repository, issue, request, summary, the files it touches, its edits."""
    issue = get(row, "related_issue", {})
    edits = [_commit(commit) for commit in get(row, "commits", [])]
    files = [
        _fenced(get(file, "path", ""), get(file, "content", "")) for file in get(row, "relevant_files", [])
    ]
    said = [f"### {get(c, 'author', 'somebody')}\n{get(c, 'body', '')}" for c in get(issue, "comments", [])]
    about = f"# Repository {need(row, 'repo_name', str)}\n{get(row, 'repo_description', '')}"
    text = blocks(
        about,
        blocks(f"# Issue: {get(issue, 'title', '')}\n{get(issue, 'body', '')}", *said) if issue else "",
        f"# Pull request: {need(row, 'title', str)}\n{get(row, 'body', '')}",
        f"# Summary\n{row['pr_summary']}" if get(row, "pr_summary", "") else "",
        "\n\n".join(("# Files", *files)) if files else "",
        "\n\n".join(("# Edits", *edits)) if edits else "",
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
        for index, commit in enumerate(commits):
            if commit["created_at"] > made and path in {get(d, "path", "") for d in get(commit, "diffs", [])}:
                answered.setdefault(index, []).append(comment)
                break
    head = f"# {need(row, 'repo_name', str)}: {get(row, 'title', '')}"
    for index, comments in sorted(answered.items()):
        asked = [
            _fenced(f"Review of {c['path']}", get(c, "diff_hunk", ""), "diff") + f"\n{need(c, 'body', str)}"
            for c in comments
        ]
        paths = {comment["path"] for comment in comments}
        diffs = [diff for diff in commits[index]["diffs"] if get(diff, "path", "") in paths]
        answer = _commit({**commits[index], "diffs": diffs})
        part = f"{own_id(row, 'id', 'number')}.{index}"
        yield Rendered(part, None, blocks(head, *asked, f"# Follow-up\n{answer}"), scalars(row, "repo_name"))


def _commit(commit: Row) -> str:
    diffs = [_fenced(get(d, "path", ""), get(d, "patch", ""), "diff") for d in get(commit, "diffs", [])]
    return blocks(get(commit, "refined_message", "") or get(commit, "message", ""), *diffs).strip("\n")


def _fenced(path: str, content: str, language: str = "") -> str:
    body = content.strip("\n")
    return f"## {path}\n```{language}\n{body}\n```" if body else f"## {path}"


# Where the words of each kind of event stand in its payload.
_EVENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "IssuesEvent": (("issue", "title"), ("issue", "body")),
    "IssueCommentEvent": (("issue", "title"), ("comment", "body")),
    "PullRequestEvent": (("pull_request", "title"), ("pull_request", "body")),
    "PullRequestReviewEvent": (("pull_request", "title"), ("review", "state"), ("review", "body")),
    "PullRequestReviewCommentEvent": (
        ("pull_request", "title"),
        ("comment", "path"),
        ("comment", "diff_hunk"),
        ("comment", "body"),
    ),
    "CommitCommentEvent": (("comment", "path"), ("comment", "body")),
    "ReleaseEvent": (("release", "name"), ("release", "tag_name"), ("release", "body")),
    "CreateEvent": (("ref_type",), ("ref",), ("description",)),
    "DeleteEvent": (("ref_type",), ("ref",)),
    "ForkEvent": (("forkee", "description"),),
    "PushEvent": (),
    "WatchEvent": (),
    "MemberEvent": (),
    "PublicEvent": (),
    "GollumEvent": (),
}


def gh_archive(row: Row) -> Documents:
    """One GH Archive event in words: what happened where, then its titles, texts, hunks and messages.

    Who did it is left out; what a bot did is rejected.
    """
    kind, payload = need(row, "type", str), get(row, "payload", {})
    repository = need(need(row, "repo", dict), "name", str)
    lines = [f"{kind} {get(payload, 'action', '')}".strip() + f" in {repository}"]
    for path in _EVENTS.get(kind, ()):
        value: object = payload
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        lines.append(value if isinstance(value, str) else "")
    lines += [get(commit, "message", "") for commit in get(payload, "commits", [])]
    lines += [get(page, "title", "") for page in get(payload, "pages", [])]
    reason = "bot" if get(get(row, "actor", {}), "login", "").endswith("[bot]") else ""
    reason = reason or ("" if kind in _EVENTS else f"unknown event: {kind}")
    yield Rendered(own_id(row), None, blocks(*lines), {"type": kind}, reason)
