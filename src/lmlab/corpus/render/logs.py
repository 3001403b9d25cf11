"""Logs of programs and of build services, without their secrets and without the names of people.

A pseudonym means the same throughout one document and nothing beyond it: pieces of one log can't be joined
again to follow somebody.
"""

import io
import re
import tarfile
from collections.abc import Iterator

from lmlab.corpus.render.rendered import Documents, Rendered, decode, inflated

CHUNK_BYTES = 64 << 10
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RUNNER_TIME = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT[\d:.]+Z ", re.MULTILINE)
_SECRET = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_ASSIGNED = re.compile(
    r"(?i)\b([\w-]*(?:password|passwd|secret|token|api[_-]?key))(\s*[=:]\s*|\s+is\s+)(?!\*)['\"]?[^\s'\",;]{6,}"
)
_PERSON = re.compile(
    r"(?P<mail>(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,})"
    r"|(?P<home>(?:/home/|/Users/|[A-Za-z]:\\Users\\))(?P<user>[^\s/\\:'\",;)]+)"
    r"|(?P<host>(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]))"
)
_HOUSE = frozenset(("runner", "root", "runneradmin", "travis", "ubuntu", "vsts", "Public", "circleci"))


def log(_name: str, data: bytes) -> Documents:
    """A diagnostic log, plain or gzipped, in chunks of whole lines."""
    for i, chunk in enumerate(_chunks(inflated(data))):
        yield Rendered(str(i), None, without_people(decode(chunk)))


def ghalogs(_name: str, data: bytes) -> Documents:
    """The logs of the jobs of one GitHub Actions run (a gzipped tar), without the runner's time stamps."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as run:
        for member in run:
            file = (
                run.extractfile(member) if member.isfile() and re.match(r"[^/]+\.txt$", member.name) else None
            )
            for i, chunk in enumerate(_chunks(file.read()) if file is not None else ()):
                text = _RUNNER_TIME.sub("", decode(chunk))
                yield Rendered(f"{member.name}.{i}", None, without_people(text))


def _chunks(data: bytes) -> Iterator[bytes]:
    """Pieces of whole lines of at most 64 KiB; a longer line is a piece of its own."""
    start = 0
    while start < len(data):
        end = (
            len(data)
            if len(data) - start <= CHUNK_BYTES
            else data.rfind(b"\n", start, start + CHUNK_BYTES) + 1
        )
        if end == 0:
            end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def without_people(text: str) -> str:
    """Terminal codes out, secrets masked, mail addresses, homes and hosts under pseudonyms of this text."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    text = _ASSIGNED.sub(r"\1\2<secret>", _SECRET.sub("<secret>", text.replace("\r\n", "\n")))
    seen: dict[str, str] = {}

    def pseudonym(match: re.Match[str]) -> str:
        kind = str(match.lastgroup if match["user"] is None else "user")
        name = match["user"] or match[0]
        if kind == "user" and name in _HOUSE:
            return match[0]
        alias = seen.setdefault(name, f"{kind}{sum(other.startswith(kind) for other in seen.values()) + 1}")
        return (match["home"] or "") + alias

    return _PERSON.sub(pseudonym, text)
