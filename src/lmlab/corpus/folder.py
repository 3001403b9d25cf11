"""A person's own folder as documents: each file is read as its name suggests, whatever lies beside it.

Files of rows give a document a row, archives one a member. What is no text, or can't be read, is rejected
with its reason and stops nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from lmlab.core.config import canonical
from lmlab.core.errors import InputError, Refused
from lmlab.corpus.archives import Span
from lmlab.corpus.extracting import Say, SourceTask, documents_of, part_count, rounds, write_parts
from lmlab.corpus.reading import ARCHIVES, CRAWLS, PACKED, Record, by_size, loaded, read, spans
from lmlab.corpus.registry import Slice
from lmlab.corpus.render.chat import SAID
from lmlab.corpus.render.rendered import UTF16
from lmlab.corpus.schema import REJECTED, Stage, document_id
from lmlab.dataflow.runner import Runner
from lmlab.dataflow.shuffle import scatter
from lmlab.storage import Path

TASK_BYTES = 64 << 20
HEAD_BYTES = 1 << 14
RENDERER_OF = {
    "html": ("*.html", "*.htm", "*.xhtml"),
    "gettext": ("*.po",),
    "man": ("man[1-9]/*.[1-9]*", "*/man[1-9]/*.[1-9]*"),
    "dictionary": ("*.dict", "*.dict.dz"),
    "notebook": ("*.ipynb",),
    "mail": ("*.eml",),
}
"""How a file or member becomes a document, where that is not `text`."""
ROW_FILES = (".jsonl", ".ndjson", ".parquet")
RENDERER_BY_FIELD = {
    **dict.fromkeys((*SAID, "messages_display"), "chat"),
    "canonical_solution": "code_task",
    **dict.fromkeys(("instruction", "question", "Question", "problem", "test_list"), "instruction"),
}
"""Rows that are more than one text tell it by a field."""
TEXT_FIELDS = ("text", "content", "body", "markdown", "document", "raw_content", "prompt")


@dataclass(frozen=True)
class Reading:
    """How files become documents."""

    text_field: str | None = None
    """The field of a row that holds its text; None looks for the usual names."""
    renderer: str | None = None
    """The renderer of every file or row, instead of the one its name suggests."""


@dataclass(frozen=True)
class FolderTask:
    """Some files of a folder, or ranges of large ones, to be scattered by id."""

    folder: Path
    pieces: tuple[tuple[Path, Span | None], ...]
    reading: Reading
    parts: int
    scattered: Path


def is_corpus(folder: Path) -> bool:
    """Whether a folder holds documents already, as a step or `lmlab corpus` wrote them."""
    return folder.is_dir() and any(path.name.startswith("part-00000-of-") for path in folder.list())


def folder_documents(folder: Path, out: Path, reading: Reading, runner: Runner, say: Say) -> Stage:
    """Write what lies below `folder` (or one file) as documents to `out`; what was read and rejected.

    The domain of a document is the folder below `folder` that it lies in, or `folder` itself.
    """
    found = _listed(folder)
    if not found:
        raise InputError(f"{folder} holds no file with anything in it. Give a folder of texts.")
    parts = part_count(sum(size for _, size in found))
    base = folder if folder.is_dir() else folder.parent
    tasks: list[FolderTask] = []
    for run in by_size(_pieces(found), lambda piece: piece[2], TASK_BYTES):
        scattered = out / ".work" / f"scattered-{len(tasks):05d}.arrow"
        pieces = tuple((path, span) for path, span, _ in run)
        tasks.append(FolderTask(base, pieces, reading, parts, scattered))
    runner.run(scatter_files, tasks, name="read", progress=partial(say, "reading files"))
    return write_parts(tuple(task.scattered for task in tasks), parts, out, runner, say)


def _listed(folder: Path) -> list[tuple[Path, int]]:
    if not folder.exists():
        raise InputError(f"{folder} does not exist. Check the path.")
    if not folder.is_dir():
        return [(folder, folder.size())]
    found = ((path, stat.size_bytes) for path, stat in folder.walk_stats())
    # Neither empty nor hidden.
    return [one for one in found if one[1] and "/." not in f"/{one[0].relative_to(folder)}"]


def _pieces(found: list[tuple[Path, int]]) -> Iterator[tuple[Path, Span | None, int]]:
    for path, size_bytes in found:
        ranges = spans(path)
        yield from ((path, span, size_bytes // len(ranges)) for span in ranges)


def scatter_files(task: FolderTask) -> None:
    """Scatter the documents of some files by id."""
    rows = (row for file, span in task.pieces for row in _rows(file, span, task))
    scatter(task.scattered, rounds(rows, task.parts), task.parts, REJECTED)


def _rows(file: Path, span: Span | None, task: FolderTask) -> Iterator[dict[str, str]]:
    name, reading, base = file.relative_to(task.folder), task.reading, task.folder.name
    domain = name.partition("/")[0] if "/" in name else base
    is_archive = file.name.endswith((*ARCHIVES, *CRAWLS))
    is_packed = is_archive or file.name.rpartition(".")[2] in PACKED
    try:
        if file.is_local and file.is_dir():
            raise InputError(f"{file} is a link to a folder, which is not followed. Read that one too.")
        field = "" if is_archive or reading.renderer else _text_field(file, reading.text_field)
        head = b"" if is_packed or field else file.read_range(0, HEAD_BYTES)
        if b"\0" in head and not head.startswith(UTF16):
            yield _rejected(base, name, domain, "no text: it holds null bytes")
            return
        of_rows = RENDERER_BY_FIELD.get(field, "document") if field else None
        slices = _slices(domain, reading.renderer or of_rows)
        package = f"{base}/{name}" if is_archive else base
        about = package, "unknown", slices, 1, True, task.parts, task.scattered
        records = (_named(record, field) for record in read(file, slices, span, name))
        yield from documents_of(SourceTask(file, name, span, *about), Counter(), records)
    except (InputError, Refused) as error:
        yield _rejected(base, name, domain, f"unreadable: {error}")


def _rejected(base: str, name: str, domain: str, reason: str) -> dict[str, str]:
    meta = canonical({"domain": domain, "language": None, "path": name})
    return {"id": document_id(""), "text": "", "source_id": f"{base}/{name}", "meta": meta, "reason": reason}


def _text_field(file: Path, wanted: str | None) -> str:
    """The field that holds the text of a file of rows; empty for any other file."""
    if not any(ending in file.name for ending in ROW_FILES):
        return ""
    rows = (_fields(record) for record in read(file, _slices("-", "document")))
    names = list(next(filter(None, rows), {}))
    field = next((name for name in (wanted, *RENDERER_BY_FIELD, *TEXT_FIELDS) if name in names), None)
    if field is None or (wanted and field != wanted):
        raise InputError(
            f"{file} has no field {wanted or 'known for text'}, only {', '.join(names) or 'none'}. "
            "Name it with --text-field."
        )
    return field


def _named(record: Record, field: str) -> Record:
    """The row with its text where the renderer looks for it."""
    row = None if field in ("", "text", *RENDERER_BY_FIELD) else _fields(record)
    return record._replace(raw={**row, "text": row.get(field)}) if row else record


def _fields(record: Record) -> dict[str, Any] | None:
    """Those of a row; None if it is no object, which its renderer will say."""
    try:
        row = loaded(record.raw)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _slices(domain: str, renderer: str | None) -> tuple[Slice, ...]:
    if renderer is not None:
        return (Slice(domain, ("*",), renderer),)
    named = [
        Slice(domain, (*patterns, *(f"{p}.gz" for p in patterns)), r) for r, patterns in RENDERER_OF.items()
    ]
    return (*named, Slice(domain, ("*",)))
