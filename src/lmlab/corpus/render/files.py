"""Members of archives as documents: text as it stands, pages, catalogues, icon sets, JSON and notebooks."""

import re

import orjson

from lmlab.core.config import Json
from lmlab.corpus.html import extract_text
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, decode, get, need
from lmlab.corpus.warc import WebRecord

JSON_LIMIT_BYTES = 200_000
OUTPUT_CHARACTERS = 10_000


def text(_name: str, data: bytes) -> Documents:
    """Prose, markup or code as it stands, with the line ends of Unix."""
    yield Rendered("", None, decode(data).replace("\r\n", "\n"))


def html(_name: str, data: bytes) -> Documents:
    """The text of a page, paragraphs parted by blank lines; the language its root element names."""
    page = extract_text(data)
    yield Rendered("", page.language, page.text)


def web_page(record: WebRecord) -> Documents:
    """A page of a crawl, decoded as its server said; a broken record is rejected with its reason."""
    page = extract_text(record.html, url=record.url, charset=record.charset)
    meta: dict[str, Json] = {"url": page.url or record.url, "date": record.date, "title": page.title}
    yield Rendered("", page.language, page.text, meta, record.reason)


def gettext(name: str, data: bytes) -> Documents:
    """A catalogue as pairs, the original over its translation, without what is untranslated or unsure."""
    pairs = []
    for entry in re.split(r"\n\s*\n", decode(data).replace("\r\n", "\n")):
        if re.search(r"^#,.*\bfuzzy\b", entry, re.MULTILINE):
            continue
        fields = _fields(entry)
        original = [fields[key] for key in ("msgid", "msgid_plural") if fields.get(key)]
        translated = [value for key, value in fields.items() if key.startswith("msgstr") and value]
        if original and translated:
            pairs.append("\n".join((*original, *translated)))
    language = re.search(r"/locale/([^/]+)/", name)
    yield Rendered("", language[1] if language else None, "\n\n".join(pairs) + "\n" if pairs else "")


def _fields(entry: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in entry.split("\n"):
        match = re.match(r'\s*(?:(msg\w+(?:\[\d+\])?)\s*)?"(.*)"\s*$', line)
        if match is None:
            continue
        key = match[1] or key
        fields[key] = fields.get(key, "") + match[2]
    return {key: re.sub(r"\\(.)", _unescape, value) for key, value in fields.items()}


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1])


def icons(_name: str, data: bytes) -> Documents:
    """One SVG document for every icon of an Iconify set."""
    loaded = orjson.loads(data)
    width, height = loaded.get("width", 16), loaded.get("height", 16)
    for icon, entry in loaded["icons"].items():
        box = f"0 0 {entry.get('width', width)} {entry.get('height', height)}"
        yield Rendered(icon, None, f'<svg viewBox="{box}">{entry["body"]}</svg>')


def json(_name: str, data: bytes) -> Documents:
    """The indented value of every top key, cut at 200 kB: a few giants would drown the domain."""
    for key, value in orjson.loads(data).items():
        whole = orjson.dumps(value, option=orjson.OPT_INDENT_2)
        yield Rendered(key, None, whole[:JSON_LIMIT_BYTES].decode(errors="ignore"))


def notebook(_name: str, data: bytes) -> Documents:
    """A Jupyter notebook: prose as it stands, code in fences, and what cells printed, without images."""
    loaded = orjson.loads(data)
    language = get(get(get(loaded, "metadata", {}), "language_info", {}), "name", "python")
    pieces = []
    for cell in need(loaded, "cells", list):
        source = _joined(cell.get("source"))
        is_code = cell.get("cell_type") == "code" and source.strip()
        printed = "\n".join(_printed(output) for output in get(cell, "outputs", [])).strip("\n")
        pieces.append(f"```{language}\n{source}\n```" if is_code else source)
        pieces.append(f"```output\n{printed[:OUTPUT_CHARACTERS]}\n```" if printed else "")
    yield Rendered("", None, blocks(*pieces))


def _printed(output: Row) -> str:
    if output.get("output_type") == "error":
        return f"{output.get('ename')}: {output.get('evalue')}"
    return _joined(output.get("text") or get(output, "data", {}).get("text/plain"))


def _joined(lines: object) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines or "")
