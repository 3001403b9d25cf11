"""B6: pages to text beside trafilatura and resiliparse; and what each makes of the same pages in a WARC file.

The pages are those of Debian's python3.11-doc (47 MB), which holds the source that each was made from. Text
is right if it has the source's words: `f1` of words counted with repeats, and of runs of four words, which
need their order too. A source becomes words in one way for all (`source_words`): marks of reStructuredText
go, as do directives without text of their own, and the words that Sphinx writes for the others are put in.
Trafilatura runs in the interpreter that LMLAB_PEER_DATA names, with each of its settings; the fastest is the
peer. Both did the same work if ours is at most a hundredth below the best of all others.
"""

import gzip
import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from lmlab.core import environ
from lmlab.core.errors import HostError
from lmlab.corpus import Source
from lmlab.corpus.archives import members
from lmlab.corpus.download import download
from lmlab.corpus.html import extract_text
from lmlab.corpus.warc import records
from lmlab.storage import Path as StoragePath

RUNS = 3
PACKAGE = Source(
    "debian",
    "python3.11-doc",
    "3.11.2-6+deb12u9",
    "python3.11-doc_3.11.2-6+deb12u9_all.deb",
    "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
    "PSF-2.0",
    (),
)
PEER = """
import json, sys, time
from trafilatura import extract
pages = json.load(open(sys.argv[1]))
for settings in ({}, {"favor_recall": True}, {"favor_precision": True}, {"fast": True}):
    started = time.process_time()
    texts = [extract(page, **settings) or "" for page in pages]
    print(json.dumps([str(settings), time.process_time() - started, texts]), flush=True)
"""
Extract = Callable[[bytes], str]
Pages = list[tuple[bytes, list[str]]]


def figures() -> Iterator[dict[str, Any]]:
    """B6, then a crawl of the same pages."""
    try:
        pages = _pages()
    except HostError as error:
        yield {"name": "B6", "ours": None, "peer": None, "note": str(error)}
        return
    with TemporaryDirectory() as name:
        yield _compared(pages, Path(name))
        yield _crawled(pages, Path(name))


def _pages() -> Pages:
    """Each page with the words of its source, in order of their names."""
    (deb,) = download([PACKAGE], lambda *_: None)
    found = dict(members(StoragePath(deb), ("*/html/*.html", "*/html/_sources/*.rst.txt")))
    pairs: Pages = []
    for name in sorted(found):
        folder, _, page = name.partition("/html/")
        source = found.get(f"{folder}/html/_sources/{page.removesuffix('.html')}.rst.txt")
        if page.endswith(".html") and source is not None:
            pairs.append((found[name], source_words(source.decode())))
    return pairs


def _compared(pages: Pages, folder: Path) -> dict[str, Any]:
    megabytes = sum(len(page) for page, _ in pages) / 1e6
    ours = {"lmlab": _ours, "resiliparse": _plain, "resiliparse main content": _main}
    speed, right = {}, {}
    for name, extract in ours.items():
        texts, cpu_s = _timed(extract, pages)
        speed[name], right[name] = megabytes / cpu_s, _scores(texts, pages)
    peers = _trafilatura(pages, folder)
    for name, (cpu_s, texts) in peers.items():
        speed[name], right[name] = megabytes / cpu_s, _scores(texts, pages)
    others = [f1 for name, (f1, _) in right.items() if name != "lmlab"]
    peer = max(speed[name] for name in peers) if peers else None
    return {
        "name": "B6", "ours": speed["lmlab"], "peer": peer, "peer_name": "trafilatura", "unit": "MB/CPU-s",
        "ratio": speed["lmlab"] / peer if peer else None, "better": "higher", "runs": RUNS,
        "same_work": right["lmlab"][0] >= max(others) - 0.01, "pages": len(pages), "mb_per_cpu_s": speed,
        "f1": {name: f1 for name, (f1, _) in right.items()},
        "f1_of_four_words": {name: f1 for name, (_, f1) in right.items()},
    }  # fmt: skip


def _crawled(pages: Pages, folder: Path) -> dict[str, Any]:
    """Pages a CPU-second from a WARC file packed by record, and the words that each extractor leaves."""
    with (folder / "a.warc.gz").open("wb") as file:
        for number, (page, _) in enumerate(pages):
            file.write(gzip.compress(_record(f"http://docs.example/{number}", page)))
    path = StoragePath(folder / "a.warc.gz")
    read_s = _median_s(lambda: [len(record.html) for record in records(path)])
    all_s = _median_s(lambda: [extract_text(page.html, charset=page.charset) for page in records(path)])
    words = {
        name: sum(len(_words(extract(record.html))) for record in records(path))
        for name, extract in (("lmlab", _ours), ("resiliparse", _plain), ("resiliparse main content", _main))
    }
    return {
        "name": "WARC to text", "ours": len(pages) / all_s, "peer": None, "unit": "pages/CPU-s",
        "better": "higher", "runs": RUNS, "read_pages_per_cpu_s": len(pages) / read_s, "words": words,
        "words_of_sources": sum(len(source) for _, source in pages), "packed_mb": path.size() / 1e6,
    }  # fmt: skip


def _record(url: str, page: bytes) -> bytes:
    content = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    head = f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content + b"\r\n\r\n"


def _ours(page: bytes) -> str:
    return extract_text(page).text


def _plain(page: bytes) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(page.decode())


def _main(page: bytes) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(page.decode(), main_content=True)


def _timed(extract: Extract, pages: Pages) -> tuple[list[str], float]:
    texts = [extract(page) for page, _ in pages]
    return texts, _median_s(lambda: [extract(page) for page, _ in pages])


def _median_s(work: Callable[[], object]) -> float:
    runs = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        runs.append(time.process_time() - started)
    return median(runs)


def _trafilatura(pages: Pages, folder: Path) -> dict[str, tuple[float, list[str]]]:
    python = environ.get("LMLAB_PEER_DATA")
    if python is None:
        return {}
    (folder / "pages.json").write_text(json.dumps([page.decode() for page, _ in pages]))
    command = [python, "-c", PEER, str(folder / "pages.json")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200).stdout
    rows = [json.loads(line) for line in told.splitlines()]
    return {f"trafilatura {settings}": (cpu_s, texts) for settings, cpu_s, texts in rows}


def _scores(texts: list[str], pages: Pages) -> tuple[float, float]:
    """Mean over all pages of F1 by words, and by runs of four words."""
    pairs = [(_words(text), source) for text, (_, source) in zip(texts, pages, strict=True)]
    return fmean(_f1(*pair, 1) for pair in pairs), fmean(_f1(*pair, 4) for pair in pairs)


def _f1(found: list[str], wanted: list[str], run: int) -> float:
    here, there = (Counter(zip(*(words[i:] for i in range(run)), strict=False)) for words in (found, wanted))
    return 2 * (here & there).total() / max(1, here.total() + there.total())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# Directives without text of their own in the page, or with text that does not stand in this file.
_SILENT = (
    "toctree|index|module|highlight|currentmodule|sectionauthor|moduleauthor|image|figure|include|literalinclude|"
    "contents|tabularcolumns|raw|default-domain|role|only|testsetup|testcleanup|audit-event-table"
)
_SAID = {
    "versionadded": "New in version", "versionchanged": "Changed in version", "seealso": "See also",
    "deprecated": "Deprecated since version", "deprecated-removed": "Deprecated since version",
    "note": "Note", "warning": "Warning", "availability": "Availability", "class": "class",
    "exception": "exception", "impl-detail": "CPython implementation detail",
}  # fmt: skip


def source_words(source: str) -> list[str]:
    """The words of a page's reStructuredText that the page shows."""
    lines: list[str] = []
    silent_from: int | None = None
    for line in source.split("\n"):
        body, indent = line.strip(), len(line) - len(line.lstrip())
        if silent_from is not None and (not body or indent > silent_from):
            continue
        silent_from = None
        mark = re.match(r"\.\.(?:\s+(.*))?$", body)
        directive = re.match(r"(?:\|[^|]+\|\s+)?([\w:-]+)::\s*(.*)$", mark[1] or "") if mark else None
        if directive and not re.fullmatch(_SILENT, directive[1]):
            lines.append(f"{_SAID.get(directive[1], '')} {directive[2]}")
        elif mark and not (mark[1] or "").startswith("["):
            silent_from = indent
        elif not (indent and re.match(r":[\w -]+:(\s|$)", body)):
            lines.append(mark[1] if mark else line)
    text = re.sub(r":([\w:+-]+):`([^`]*)`", _role, "\n".join(lines))
    return _words(re.sub(r"`([^`<]*?)\s*<[^`>]*>`_*", r"\1", text))


def _role(match: re.Match[str]) -> str:
    name, text = match[1], match[2]
    titled = re.match(r"(.*?)\s*<[^<>]*>$", text, re.DOTALL)
    if titled:
        return titled[1]
    if name in ("pep", "rfc", "issue"):
        return f"{'bpo' if name == 'issue' else name} {text}"
    return text[1:].rpartition(".")[2] if text.startswith("~") else text.lstrip("!")
