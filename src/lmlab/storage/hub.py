"""What can be read over HTTP: `hf://datasets/owner/name@revision/file` on the hub, and any `https://` file.

A `Hub` answers like one of obstore's clients, to reading calls only. Every request has the lab's limits, and
what a server refuses (401, 403, 429) is said with the setting that helps.
"""

import atexit
import itertools
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from obstore.exceptions import GenericError, PreconditionError

from lmlab.core.errors import ConfigError, NoRanges, Refused, StorageError
from lmlab.storage import secrets
from lmlab.storage.lab import Backend, Limits

PUBLIC = "https://huggingface.co"
KINDS = ("datasets", "models", "spaces")
Entries = list[tuple[dict[str, Any], bool]]
"""Files and folders: what obstore would tell of each, and whether it is a folder."""
_REPOSITORY = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_NEVER = datetime.fromtimestamp(0, UTC)


class Hub:
    """One host, or one kind of the hub's repositories."""

    def __init__(self, scheme: str, bucket: str, given: Backend, limits: Limits) -> None:
        if scheme == "hf" and bucket not in KINDS:
            raise ConfigError(
                f"hf://{bucket}/… names no kind of repository. Write hf:// and one of {', '.join(KINDS)}, "
                "such as hf://datasets/owner/name/file."
            )
        self._scheme, self._bucket, self.limits = scheme, bucket, limits
        self._base = (given.endpoint or PUBLIC).rstrip("/")
        what = f"{scheme}://{bucket}, token"
        self._token = secrets.resolve(given.token, what) if given.token else None
        # Without compression, so that lengths are the file's.
        headers = {"Accept-Encoding": "identity", "User-Agent": "lmlab"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token.line()}"
        timeout = httpx.Timeout(limits.silence_s, connect=min(limits.connect_s, limits.silence_s))
        pool = httpx.Limits(max_connections=limits.connections)
        # A redirect to another host is followed without the token.
        self._http = httpx.Client(timeout=timeout, limits=pool, headers=headers, follow_redirects=True)
        atexit.register(self._http.close)

    def head(self, key: str) -> dict[str, Any]:
        """Size, time and version of a file."""
        answer = self._send("HEAD", self._file(key), key)
        answer.close()
        size = _first(answer, "x-linked-size") or answer.headers.get("content-length")
        if size is None:
            raise NoRanges(f"{self._place(key)} has no known size: its server doesn't tell. Read it whole.")
        told = answer.headers.get("last-modified")
        modified = parsedate_to_datetime(told) if told else _NEVER
        return {"path": key, "size": int(size), "last_modified": modified, "e_tag": _etag(answer)}

    def get(self, key: str, options: dict[str, Any] | None = None) -> "Answer":
        """A file, or a range of it, whose head has come."""
        wanted = options or {}
        start, end = wanted.get("range", (0, None))
        headers = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        response = self._send("GET", self._file(key), key, headers)
        if wanted.get("if_match") not in (None, _etag(response)):
            response.close()
            raise PreconditionError(f"{self._place(key)} has another version.")
        return Answer(self, key, response, is_part=bool(headers))

    def list(self, prefix: str | None, chunk_size: int = 0) -> Iterator[list[dict[str, Any]]]:
        """All files below, a page at a time as the hub cuts them (`chunk_size` is obstore's)."""
        assert chunk_size >= 0
        for page in self._tree(prefix or "", "?recursive=true"):
            yield [entry for entry, is_folder in page if not is_folder]

    def list_with_delimiter(self, prefix: str | None) -> dict[str, Any]:
        """Files and folders right below."""
        entries = [found for page in self._tree(prefix or "", "") for found in page]
        folders = [entry["path"] for entry, is_folder in entries if is_folder]
        return {
            "common_prefixes": folders,
            "objects": [entry for entry, is_folder in entries if not is_folder],
        }

    def _tree(self, key: str, query: str) -> Iterator[Entries]:
        if self._scheme != "hf":
            raise StorageError(f"{self._place(key)} can't be listed: HTTP has no folders. Name each file.")
        repository, revision, path = self._parts(key)
        folder = f"{self._base}/api/{self._bucket}/{repository}/tree/{quote(revision or 'main', safe='')}"
        address = f"{folder}/{quote(path)}".rstrip("/")
        url: str | None = address + query
        top = f"{repository}@{revision}" if revision else repository
        while url:
            try:
                answer = self._send("GET", url, key)
            except FileNotFoundError as error:
                if "EntryNotFound" in str(error):
                    return
                raise
            try:
                rows = msgspec.json.decode(b"".join(self.blocks(answer, key)), type=list[_Row])
            except msgspec.DecodeError as error:
                raise StorageError(
                    f"{url} is not what a hub answers ({error}). Correct its endpoint."
                ) from error
            yield [(row.entry(top), row.type == "directory") for row in rows]
            # Only the cursor is taken from the link: it must not send the token to another host.
            following = answer.links.get("next", {}).get("url")
            url = following and f"{address}?{httpx.URL(following).query.decode()}"

    def blocks(self, response: httpx.Response, key: str) -> Iterator[bytes]:
        """The body as it comes, within the limits. Raises StorageError if it ends early or takes too long."""
        deadline = time.monotonic() + self.limits.total_s
        try:
            for block in response.iter_bytes():
                yield block
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("total")
        except httpx.RequestError as error:
            raise self._failure(key, f"its body broke off ({type(error).__name__})") from None
        finally:
            response.close()

    def _send(self, method: str, url: str, key: str, headers: dict[str, str] | None = None) -> httpx.Response:
        deadline = time.monotonic() + self.limits.total_s
        for tried in itertools.count(1):
            wait_s = 0.1 * 2**tried
            try:
                request = self._http.build_request(method, url, headers=headers)
                answer = self._http.send(request, stream=True)
            except httpx.InvalidURL as error:
                raise ConfigError(f"{self._place(key)} is no address ({error}). Correct it.") from None
            except httpx.RequestError as error:
                reason = f"it can't be reached or keeps silent ({type(error).__name__})"
            else:
                if answer.is_success:
                    return answer
                answer.close()
                if answer.status_code != 429 and answer.status_code < 500:
                    raise self._refusal(answer, key)
                asked_s = retry_after_s(answer)
                wait_s = max(wait_s, asked_s)
                reason = f"it answers {answer.status_code}" + (
                    f", and to wait {asked_s:.0f} s" * (asked_s > 0)
                )
            if tried >= self.limits.tries or time.monotonic() + wait_s + self.limits.silence_s > deadline:
                # Not chained: a client's error may hold the request with its token.
                raise self._failure(key, f"{reason}, after {tried} tries") from None
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _refusal(self, answer: httpx.Response, key: str) -> Exception:
        names = ("x-error-code", "x-error-message")
        told = [answer.headers[name] for name in names if name in answer.headers]
        status, why = answer.status_code, f", {': '.join(told)}" if told else ""
        if status in (401, 403):
            where = "hf://" if self._scheme == "hf" else f"{self._scheme}://{self._bucket}"
            help_ = (
                f"{self._token!r} lacks access: ask for it on that page, or give another token."
                if self._token
                else f'No token is given: token = ["env:HF_TOKEN"] under [backends."{where}"] in lmlab.toml.'
            )
            return Refused(f"{self._place(key)} needs a token with access ({status}{why}). {help_}")
        if status == 416:
            return GenericError("416 Range Not Satisfiable")
        if status == 404:
            return FileNotFoundError(f"{self._place(key)}{why}")
        return Refused(f"{self._place(key)} could not be read: the server answers {status}{why}.")

    def _failure(self, key: str, reason: str) -> StorageError:
        return StorageError(
            f"{self._place(key)} could not be read: {reason}. Try again later, or raise [limits]."
        )

    def _file(self, key: str) -> str:
        if self._scheme != "hf":
            return f"{self._scheme}://{self._bucket}/{key.replace('#', '%23')}"
        repository, revision, path = self._parts(key)
        kind = "" if self._bucket == "models" else f"{self._bucket}/"
        return f"{self._base}/{kind}{repository}/resolve/{quote(revision or 'main', safe='')}/{quote(path)}"

    def _parts(self, key: str) -> tuple[str, str | None, str]:
        found = _REPOSITORY.fullmatch(key)
        if not found:
            raise ConfigError(
                f"{self._place(key)} names no repository. Write hf://{self._bucket}/owner/name/file."
            )
        return found[1], found[2], found[3] or ""

    def _place(self, key: str) -> str:
        return f"{self._scheme}://{self._bucket}/{key}"


class _Large(msgspec.Struct):
    oid: str


class _Row(msgspec.Struct):
    """What the hub tells of one file or folder."""

    type: str
    path: str
    size: int = 0
    oid: str = ""
    lfs: _Large | None = None

    def entry(self, top: str) -> dict[str, Any]:
        version = self.lfs.oid if self.lfs else self.oid
        return {"path": f"{top}/{self.path}", "size": self.size, "last_modified": _NEVER, "e_tag": version}


class Answer:
    """A file whose head has come; as obstore's."""

    def __init__(self, hub: Hub, key: str, response: httpx.Response, *, is_part: bool) -> None:
        self._hub, self._key, self._response = hub, key, response
        told = re.match(r"bytes (\d+)-(\d+)/", response.headers.get("content-range", ""))
        length = int(response.headers.get("content-length", 0))
        if is_part and length and not told:
            response.close()
            raise NoRanges(
                f"{response.url} can't be read in parts: its server gives no ranges. Read it whole."
            )
        self.range = (int(told[1]), int(told[2]) + 1) if told else (0, length)
        self._has_ranges = bool(told) or "bytes" in response.headers.get("accept-ranges", "")

    def stream(self, min_chunk_size: int = 0) -> Iterator[bytes]:
        """The bytes, in blocks as the server sends them; goes on where a connection was cut."""
        assert min_chunk_size >= 0
        limits, (position, end), rest = self._hub.limits, self.range, self
        late = time.monotonic() + limits.total_s - limits.silence_s
        for tries_left in reversed(range(limits.tries)):
            try:
                for block in self._hub.blocks(rest._response, self._key):
                    position += len(block)
                    yield block
                return
            except StorageError:
                if not (self._has_ranges and tries_left and position < end and time.monotonic() < late):
                    raise
            version = _etag(self._response)
            rest = self._hub.get(self._key, {"range": (position, end), "if_match": version})

    def bytes(self) -> bytes:
        """All of them."""
        return b"".join(self.stream())

    def __del__(self) -> None:
        self._response.close()


def _first(answer: httpx.Response, name: str) -> str | None:
    """A header of a redirect or the answer: the hub tells in redirects of files that lie elsewhere."""
    return next((a.headers[name] for a in (*answer.history, answer) if name in a.headers), None)


def _etag(answer: httpx.Response) -> str:
    told = _first(answer, "x-linked-etag") or answer.headers.get("etag", "")
    return told.removeprefix("W/").strip('"')


def retry_after_s(answer: httpx.Response) -> float:
    told = answer.headers.get("retry-after", "0")
    if told.isdigit():
        return float(told)
    try:
        return max(0.0, (parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
