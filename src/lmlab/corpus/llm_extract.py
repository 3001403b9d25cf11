"""Pages to text by a language model behind an OpenAI-compatible endpoint, for pages that rules read badly.

The model sees the page as simple HTML and gives back its content, which is kept if its words are the page's.
Every answer is cached under what was asked, so that a rerun costs nothing and gives the same.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import httpx
import orjson

from lmlab.core.config import Json, canonical
from lmlab.core.errors import ConfigError, HostError
from lmlab.corpus.html import decode_page
from lmlab.dataflow.counters import count
from lmlab.storage import Path
from lmlab.storage.hub import retry_after_s
from lmlab.storage.secrets import resolve

CONNECT_S = 10.0
PROMPT = """Below is a web page. Write down its main content as plain text, word for word: headings,
paragraphs, lists, tables and code. Leave out menus, banners, footers and comments. Add nothing and explain
nothing.

{page}

The main content as plain text:
"""


@dataclass(frozen=True)
class Extractor:
    """Which model is asked, what, and how patiently.

    >>> Extractor("http://localhost:8000/v1", "tiny@1", endpoint="completions").tries
    5
    """

    url: str
    """Of the API, such as `https://host/v1`."""
    model: str
    """Name under which it is served."""
    token: tuple[str, ...] = ()
    """References to the secret that the endpoint asks for, the first that is there; none: no token."""
    endpoint: Literal["chat/completions", "completions"] = "chat/completions"
    """`completions` for a model without a chat template."""
    prompt: str = PROMPT
    """With `{page}` where the page goes."""
    page_chars: int = 24_000
    """Of the page's simple HTML; the rest is cut off."""
    max_tokens: int = 4096
    """Of the answer; a longer one is rejected."""
    own_words: float = 0.9
    """Share of the answer's words that must be the page's."""
    at_once: int = 8
    """Requests under way."""
    total_s: float = 300
    """Limit for one request, which answers with no byte before it has all of them."""
    tries: int = 5
    """For each page, if the endpoint is busy or out of reach."""
    wait_s: float = 1
    """Before the second try, doubled before each further one, unless the endpoint asks for another time."""

    def __post_init__(self) -> None:
        if "{page}" not in self.prompt:
            raise ConfigError("prompt holds no {page}, so the model would not see it. Write where it goes.")


class Answer(NamedTuple):
    """What a model made of a page."""

    text: str
    reason: str = ""
    """Why the text is not to be used, as "kind: detail"; empty if it is."""


def extract_pages(pages: Sequence[bytes | str], extractor: Extractor, cache: Path) -> list[Answer]:
    """An answer for each page, in their order; blocks until all are there.

    Raises ConfigError for what the endpoint refuses to anybody (401, 403, 404), at once, and HostError if it
    stays busy or out of reach; what was answered until then is in the cache.
    """
    return asyncio.run(_extract(pages, extractor, cache))


async def _extract(pages: Sequence[bytes | str], extractor: Extractor, cache: Path) -> list[Answer]:
    headers = {}
    if extractor.token:
        headers["Authorization"] = f"Bearer {resolve(extractor.token, extractor.url).line()}"
    limits = httpx.Timeout(None, connect=CONNECT_S)
    turn = asyncio.Semaphore(extractor.at_once)

    async def answer(page: bytes | str) -> Answer:
        async with turn:
            return await _answer(http, page, extractor, cache)

    async with httpx.AsyncClient(headers=headers, timeout=limits) as http:
        return await asyncio.gather(*map(answer, pages))


async def _answer(http: httpx.AsyncClient, page: bytes | str, extractor: Extractor, cache: Path) -> Answer:
    simple = await asyncio.to_thread(_simple, page, extractor.page_chars)
    prompt = extractor.prompt.replace("{page}", simple)
    asked: dict[str, Json] = {"model": extractor.model, "temperature": 0, "max_tokens": extractor.max_tokens}
    if extractor.endpoint == "completions":
        asked["prompt"] = prompt
    else:
        asked["messages"] = [{"role": "user", "content": prompt}]
    key = hashlib.sha256(canonical(asked).encode()).hexdigest()
    kept = cache / key[:2] / f"{key}.json"
    data = await asyncio.to_thread(kept.read_if_present)
    is_new = data is None
    data = data or await _ask(http, asked, extractor)
    answer = _checked(data, simple, extractor.own_words)
    kind = answer.reason.partition(":")[0]
    # What the model said is kept, not what became of it: what is asked of an answer may change.
    if is_new and kind != "no answer":
        await asyncio.to_thread(kept.write_bytes, data)
    count(f"llm {kind or 'kept'}")
    return answer


def _simple(page: bytes | str, limit: int) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    markup = page if isinstance(page, str) else decode_page(page)
    return extract_plain_text(markup, preserve_formatting="minimal_html")[:limit]


async def _ask(http: httpx.AsyncClient, asked: dict[str, Json], extractor: Extractor) -> bytes:
    """The endpoint's reply to a question, however often it must be asked."""
    url = f"{extractor.url.rstrip('/')}/{extractor.endpoint}"
    said, wait_s, attempt = "", 0.0, 0
    for attempt in range(extractor.tries):
        await asyncio.sleep(wait_s)
        count("llm requests")
        wait_s = extractor.wait_s * 2**attempt
        try:
            async with asyncio.timeout(extractor.total_s):
                reply = await http.post(url, json=asked)
        except (httpx.TransportError, TimeoutError) as error:
            said = f"{type(error).__name__} {error}"
            continue
        said = f"{reply.status_code}: {' '.join(reply.text[:200].split())}"
        if reply.status_code in (401, 403, 404):
            raise ConfigError(f"{url} refuses {extractor.model} ({said}). Correct url, model or token.")
        if reply.status_code < 500 and reply.status_code != 429:
            return reply.content
        wait_s = retry_after_s(reply) or wait_s
        if wait_s > extractor.total_s:
            break
    raise HostError(
        f"{url} gave no answer in {attempt + 1} tries (the last: {said}), so pages are missing. "
        "See that it runs, and run this again: what it answered is kept."
    )


def _checked(data: bytes, simple: str, own_words: float) -> Answer:
    try:
        choice = orjson.loads(data)["choices"][0]
        text = (choice["message"]["content"] if "message" in choice else choice["text"]).strip()
        ended = choice["finish_reason"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return Answer("", f"no answer: {data[:200].decode(errors='replace')!r}")
    words, page = _words(text), _words(re.sub(r"<[^>]*>", " ", simple))
    share = (words & page).total() / max(1, words.total())
    if ended == "length":
        return Answer(text, f"cut off: {len(text)} characters do not end")
    if not words:
        return Answer(text, "empty")
    if share < own_words:
        return Answer(text, f"foreign words: only {share:.0%} of {words.total()} are the page's")
    return Answer(text)


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))
