"""From facts to a page: the templates, how values are shown, and links that work below any proxied path."""

import csv
import io
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lmlab.core.units import format_bytes, format_count, format_seconds

ABSENT = "–"
LATER = Markup("<!-- the rest is being asked for -->")
_ADDRESS = re.compile(r"([\w./+=-]+@(?:\d{4}\.\d{2}\.\d{2}(?:\.\d+)?|(?:[a-z0-9_-]+-)?dev))(?:/[\w./+=-]+)?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


async def page(template: str, request: Request, context: Mapping[str, Any], status: int = 200) -> Response:
    """One HTML page. Links are relative to `base`, so that the site may stand below any path.

    What stands before `later` in a template is sent before what follows is waited for.
    """
    depth = request.scope["raw_path"].count(b"/") - 1
    query = defaultdict(str, request.query_params)

    def here(**changes: Any) -> str:
        """This page with other parameters; None takes one away."""
        kept = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
        return f"?{urlencode(kept)}"

    facts = {"base": "../" * depth or "./", "here": here, "query": query, "section": template, "later": LATER}
    pieces = _pieces(_environment().get_template(template).generate_async({**facts, **context}))
    first = await anext(pieces)

    async def rest() -> AsyncIterator[str]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(rest(), status, media_type="text/html")


async def _pieces(parts: AsyncIterator[str]) -> AsyncIterator[str]:
    waiting: list[str] = []
    async for part in parts:
        waiting.append(part)
        if part == LATER:
            yield "".join(waiting)
            waiting.clear()
    yield "".join(waiting)


def csv_file(name: str, rows: Sequence[Mapping[str, Any]]) -> Response:
    """A table as it is on the page, or all of it where the page shows a part."""
    written = io.StringIO()
    writer = csv.DictWriter(written, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows({key: _plain(value) for key, value in row.items()} for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(written.getvalue(), media_type="text/csv", headers=headers)


def shown(value: Any, key: str = "", digits: int = 6) -> str:
    """A number with the unit that its name says; anything else as it is.

    >>> shown(1536, "size_bytes"), shown(75.0, "train_seconds"), shown(1228800), shown(0.123456), shown(None)
    ('1.5 KiB', '1m15s', '1,228,800', '0.123456', '–')
    """
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if re.search(r"(^|_)bytes$", key):
            return format_bytes(value)
        if re.search(r"(^|_)(seconds|s)$", key):
            return format_seconds(value)
        return f"{value:,}" if isinstance(value, int) and abs(value) < 1e12 else f"{value:.{digits}g}"
    return json.dumps(value, ensure_ascii=False)


def brief(value: Any, key: str = "") -> str:
    """The same for a headline figure: a few digits are enough."""
    plain = shown(value, key, digits=4)
    return format_count(value) if plain.count(",") > 1 and isinstance(value, int) else plain


def moment(seconds: float | None) -> str:
    """A time of a record, in UTC."""
    return ABSENT if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def ago(seconds: float | None) -> str:
    """How long since then, to the largest unit."""
    passed = max(0.0, time.time() - (seconds or 0))
    steps = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    size, unit = next((step for step in steps if passed >= step[0]), steps[-1])
    return ABSENT if seconds is None else f"{passed // size:.0f} {unit} ago"


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of nested JSON, without the tag of a dataclass."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(str(key), item) for key, item in pairs if key != "type" or not isinstance(value, Mapping)]


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _is_nested(value: Any) -> bool:
    parts = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(isinstance(part, dict | list) and part for part in parts)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("lmlab.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        enable_async=True,
    )
    filters = environment.filters
    filters.update(bytes=format_bytes, count=format_count, seconds=format_seconds, moment=moment, ago=ago)
    filters.update(shown=shown, brief=brief, fields=_fields, plain=partial(_ESCAPES.sub, ""))
    filters.update(name=lambda address: str(address).partition("@")[0])
    filters.update(version=lambda address: str(address).partition("@")[2])
    filters.update(artifact=partial(_ADDRESS.sub, r"\1"), path=lambda text: quote(str(text), safe="/@"))
    environment.tests.update(nested=_is_nested, address=_is_address)
    return environment
