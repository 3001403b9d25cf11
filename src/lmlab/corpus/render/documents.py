"""Rows that hold a text already: crawls, captions, icons, questions, code tasks, filings, pages of books."""

import re
from collections.abc import Sequence

from lmlab.core.config import Json
from lmlab.corpus.html import extract_text
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, own_id, scalars

REGISTERS = ("LY", "SP", "ID", "NA", "HI", "IN", "OP", "IP", "MT")
GOOD_PROSE = ("ob", "nb", "ne", "ra", "re", "rv", "sr", "it", "en", "av", "rs")
MAX_TRANSLATED, MAX_SELLING, MIN_PROSE = 0.2, 0.1, 0.15
TOC_CHARACTERS = 200
_ITEM = re.compile(
    r"^[ \t]*(?:PART\s+(I{1,3}|IV)|ITEM\s+(\d{1,2}(?:\.\d\d)?)([A-C]?))\b(?=.{0,100}$)",
    re.MULTILINE | re.IGNORECASE,
)
_QUESTIONS = ("instruction", "question", "Question", "prompt", "problem", "text")
_ANSWERS = ("output", "answer", "Answer", "completion", "response", "solution", "code")


def document(row: Row) -> Documents:
    """dolma and Common Pile: `text`, and the license, address and source that row or metadata give."""
    inner = get(row, "metadata", {})
    names = ("source", "license", "url", "created", "author")
    language = own_id({**row, **inner}, "language") or None
    yield Rendered(own_id(row), language, need(row, "text", str), scalars({**row, **inner}, *names))


def eai_taxonomy(row: Row) -> Documents:
    """Essential-Web: `text`, with the first label of each field of its taxonomy."""
    primary = {
        field: get(value or {}, "primary", {}) for field, value in get(row, "eai_taxonomy", {}).items()
    }
    labels: dict[str, Json] = {field: one.get("code") or one.get("label") for field, one in primary.items()}
    yield Rendered(own_id(row), None, need(row, "text", str), {**scalars(row, "url"), "taxonomy": labels})


def hplt(row: Row) -> Documents:
    """HPLT v3: `text`; what Common Crawl has anyway, translations, adverts and personal data are rejected.

    The limits are those of marin#4326, where they agreed with labels in 99 of 100 documents.
    """
    scores = {name: float(score or 0) for name, score in get(row, "web-register", {}).items()}
    pii, quality = get(row, "pii", []), (get(row, "doc_scores", []) or [None])[0]
    best = max(scores.keys() & {*REGISTERS}, key=lambda name: (scores[name], name), default=None)
    sub = max(scores.keys() - {*REGISTERS}, key=lambda name: (scores[name], name), default=None)
    faults = {
        "Common Crawl": not get(row, "crawl_id", "").startswith(("wide", "survey")),
        "personal data": bool(pii),
        "machine translated": scores.get("MT", 0) >= MAX_TRANSLATED,
        "selling": scores.get("ds", 0) > MAX_SELLING,
        "legal terms": sub == "lt",
        "persuasion": best == "IP" and all(scores.get(name, 0) <= MIN_PROSE for name in GOOD_PROSE),
        "register": sub not in GOOD_PROSE and best not in ("HI", "LY", "SP") and (quality or 0) < 8,
    }
    reason = next((f"HPLT {name}" for name, is_so in faults.items() if is_so), "")
    meta: dict[str, Json] = {"register": best, "subregister": sub, "machine_translated": scores.get("MT")}
    meta |= {"personal_data": len(pii), "quality": quality, **scalars(row, "u", "crawl_id")}
    language = next(iter(get(row, "lang", [])), None)
    yield Rendered(own_id(row), language, need(row, "text", str), meta, reason)


def captions(row: Row) -> Documents:
    """Molmo2-Cap: the paragraph on the whole video, then a line for each captioned frame with its second."""
    frames = zip(get(row, "frame_timestamps", []), get(row, "frame_captions", []), strict=True)
    lines = [f"[{time:.2f} s] {said.strip()}" for time, said in frames if said and said.strip()]
    text = blocks(need(row, "merged_caption", str).strip(), "\n".join(lines))
    yield Rendered(own_id(row, "id", "video_id"), "en", text)


def svg(row: Row) -> Documents:
    """An SVG icon after a prefix of Title, Data Pack and Tags, for a model that draws what is described."""
    tags = ", ".join(get(row, "tags", []))
    prefix = f"Title: {need(row, 'title', str)}\nData Pack: {get(row, 'data_pack', '')}\nTags: {tags}"
    yield Rendered(own_id(row), None, blocks(prefix, need(row, "svg_content", str)), scalars(row, "license"))


def instruction(row: Row) -> Documents:
    """A question and its answer: GSM8K, MMLU, MBPP, SVAMP, Alpaca, every instance of a self-instruct task."""
    question = blocks(get(row, "Body", ""), _first(row, _QUESTIONS))
    tests = "\n".join(get(row, "test_list", []))
    choices = [f"{chr(65 + i)}. {choice}" for i, choice in enumerate(get(row, "choices", []))]
    for i, instance in enumerate(get(row, "instances", [row])):
        part = own_id(row, "id", "task_id", "ID") + (f".{i}" if i else "")
        answer = _first(instance, _ANSWERS)
        answer = choices[int(answer)] if choices and answer.isdecimal() else answer
        text = blocks(question, get(instance, "input", ""), "\n".join(choices), answer, tests)
        yield Rendered(part, None, text)


def _first(row: Row, names: Sequence[str]) -> str:
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        raise ValueError(f"none of {', '.join(names)} is there")
    return str(row[name])


def code_task(row: Row) -> Documents:
    """HumanEval and VerilogEval: what is wanted, the start of the code, its solution."""
    wanted = get(row, "detail_description", "") or get(row, "description", "")
    code = need(row, "prompt", str) + need(row, "canonical_solution", str)
    yield Rendered(own_id(row, "task_id"), None, blocks(wanted, code))


def book(rows: Sequence[Row]) -> Documents:
    """The pages of one scanned item (BHL) as one text; a word or sentence parted by a page is joined."""
    pieces: list[str] = []
    for row in sorted(rows, key=lambda row: float(row["page_num"])):
        page, end = get(row, "text", "").strip(), pieces[-1][-2:] if pieces else ""
        if not page:
            continue
        if page[0].islower() and re.search(r"[^\W\d_]-$", end):
            pieces[-1] = pieces[-1][:-1]
        elif pieces:
            pieces.append(" " if page[0].islower() and re.search(r"[\w,;-]$", end) else "\n\n")
        pieces.append(page)
    yield Rendered("", None, blocks("".join(pieces)))


def filing(row: Row) -> Documents:
    """A filing at the SEC: form, company and date, then its items in the order of the form, once each.

    What an item's heading has in the table of contents is left out: fewer than 200 characters beside more.
    """
    text = need(row, "content" if "content" in row else "text", str).replace("\r\n", "\n")
    if re.search(r"<(?:html|body|td|div)\b", text[:20_000], re.IGNORECASE):
        text = extract_text(text, main_content=False).text
    text = re.sub(r"</?(?:TABLE|CAPTION|PAGE|S|C|FN)>[ \t]*", "", text)
    form = own_id(row, "form_type", "filing_type", "form")
    company = own_id(row, "company", "company_name", "name", "cik")
    head = " ".join(filter(None, ("Form", form, company, own_id(row, "filing_date", "date", "period"))))
    yield Rendered(own_id(row, "accession_number", "id"), "en", blocks(head, _in_order(text)), {"form": form})


def _in_order(text: str) -> str:
    heads = list(_ITEM.finditer(text))
    bodies: dict[tuple[int, float, str], list[str]] = {}
    part = 0
    for head, end in zip(heads, [*(later.start() for later in heads[1:]), None], strict=False):
        part = len(head[1].upper().replace("IV", "IIII")) if head[1] else part
        key = part, float(head[2] or 0), (head[3] or "").upper()
        bodies.setdefault(key, []).append(text[head.start() : end].strip())
    kept = [text[: heads[0].start()] if heads else text]
    for _, found in sorted(bodies.items()):
        kept += [body for body in found if len(body) >= TOC_CHARACTERS] or [max(found, key=len)]
    return blocks(*kept)
