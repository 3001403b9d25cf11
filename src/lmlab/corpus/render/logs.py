"""Logs of programs and of build services, without their secrets and without the names of people.

A pseudonym means the same throughout one document and nothing beyond it: pieces of one log can't be joined
again to follow somebody.
"""

import io
import re
from collections.abc import Iterator
from functools import partial

from lmlab.core.errors import InputError
from lmlab.corpus.archives import members_of
from lmlab.corpus.render.rendered import Documents, Rendered, decode

CHUNK_BYTES = 64 << 10
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RUNNER_TIME = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT[\d:.]+Z ", re.MULTILINE)
_SECRET = re.compile(
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"
)
_NAMED_SECRET = re.compile(
    r"((?:passw(?:or)?d|secret|token|api[_-]?key)['\"]?\s{0,3}[=:]\s{0,3}['\"]?)[^\s'\",;*]{6,}",
    re.IGNORECASE,
)
_MAIL = re.compile(r"()(?<![\w.+-])([\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.[A-Za-z]{2,24})")
_HOME = re.compile(r"(/home/|/Users/|\\Users\\)([^\s/\\:'\",;)]+)")
_HOST = re.compile(r"()(?<![\w.])([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})(?![\w.])")
_HOUSE = frozenset(("runner", "root", "runneradmin", "travis", "ubuntu", "vsts", "Public", "circleci"))


def log(_name: str, data: bytes) -> Documents:
    """A diagnostic log in chunks of whole lines."""
    for i, chunk in enumerate(_chunks(data)):
        yield Rendered(str(i), None, without_people(decode(chunk)))


def ghalogs(name: str, data: bytes) -> Documents:
    """The log of each job of a GitHub Actions run (a tar of them, or one), without the runner's time stamps.

    In folders lie the logs of single steps, which those of the jobs hold too.
    """
    if name.endswith(".txt"):
        if "/" in name:
            yield Rendered("", None, "", reason="log of a step")
        else:
            yield from _of_job("", data)
        return
    try:
        for job, log_ in members_of(name, io.BytesIO(data), ("*.txt",)):
            if "/" not in job:
                yield from _of_job(f"{job}.", log_)
    except InputError as error:  # of one record, not of the whole source
        raise ValueError(str(error)) from error


def _of_job(place: str, data: bytes) -> Documents:
    for i, chunk in enumerate(_chunks(data)):
        yield Rendered(f"{place}{i}", None, without_people(_RUNNER_TIME.sub("", decode(chunk))))


def _chunks(data: bytes) -> Iterator[bytes]:
    """Pieces of whole lines of at most 64 KiB; a longer line is a piece of its own."""
    start = 0
    while start < len(data):
        end = start + CHUNK_BYTES
        if end < len(data):
            end = data.rfind(b"\n", start, end) + 1 or data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def without_people(text: str) -> str:
    """Terminal codes out, secrets masked, mail addresses, homes and hosts under pseudonyms of this text."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    text = _SECRET.sub("<secret>", text.replace("\r\n", "\n"))
    seen: dict[str, dict[str, str]] = {"mail": {}, "user": {}, "host": {}}

    def hide(kind: str, match: re.Match[str]) -> str:
        if match[2] in _HOUSE:
            return match[0]
        return match[1] + seen[kind].setdefault(match[2], f"{kind}{len(seen[kind]) + 1}")

    # Patterns that begin with anything are 10 times as slow as a look for what their lines must hold.
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if "@" in line:
            lines[i] = _MAIL.sub(partial(hide, "mail"), line)
        lowered = line.lower()
        if "token" in lowered or "passw" in lowered or "secret" in lowered or "key" in lowered:
            lines[i] = _NAMED_SECRET.sub(r"\1<secret>", lines[i])
    return _HOST.sub(partial(hide, "host"), _HOME.sub(partial(hide, "user"), "\n".join(lines)))
