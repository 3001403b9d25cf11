"""Documents as a stream: of a corpus (parts in the one schema), or of a person's own files."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import xxhash

from lmlab.core.errors import InputError
from lmlab.corpus.schema import parts_of
from lmlab.dataflow.files import JSONL, read_batches, read_jsonl
from lmlab.storage import Path

TEXT = (".txt", ".md")
ROWS = (".parquet", *JSONL)
NO_DOMAIN = "text"


class Document(NamedTuple):
    """One document. `id` is 32 hex digits of its text's xxh3-128; `data` is its text in UTF-8."""

    id: str
    domain: str
    data: bytes


class DocumentFile(NamedTuple):
    """A file of documents, and the domain of those that name none: the subfolder it lies in."""

    path: Path
    domain: str


def read_documents(folder: Path) -> Iterator[Document]:
    """Every document below `folder`, in the order of its files; holds about 1 MB of them in memory."""
    for file in document_files(folder):
        yield from read_file(file)


def document_files(*places: Path) -> list[DocumentFile]:
    """The files of documents below folders (the parts of a corpus, or any rows and texts), or files given."""
    files: list[DocumentFile] = []
    for place in places:
        if not place.is_dir():
            files.append(DocumentFile(place, NO_DOMAIN))
        elif any(path.name.startswith("part-") for path in place.list()):
            files += [DocumentFile(part, "") for part in parts_of(place)]
        else:
            found = [path for path in place.walk() if path.name.lower().endswith((*ROWS, *TEXT))]
            for path in found:
                subfolder, inside, _ = path.relative_to(place).partition("/")
                files.append(DocumentFile(path, subfolder if inside else NO_DOMAIN))
    if not files:
        raise InputError(
            f"{', '.join(map(str, places))} holds no document parts and no {', '.join((*ROWS, *TEXT))}, so "
            "there is no text. Give a corpus, or a folder with such files."
        )
    return files


def read_file(given: DocumentFile) -> Iterator[Document]:
    """The documents of one file."""
    file, domain = given
    name = file.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet(file, domain)
    elif name.endswith(JSONL):
        for number, row in enumerate(read_jsonl(file), 1):
            text = row.get("text") if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise InputError(
                    f"{file}, line {number}, has no text ({str(row)[:60]}). Give every row a field text, "
                    "or make documents of the folder with `lmlab corpus`."
                )
            yield _document(text.encode(errors="replace"), row, domain, file)
    else:
        yield _document(file.read_bytes().decode(errors="replace").encode(), {}, domain, file)


def _parquet(file: Path, domain: str) -> Iterator[Document]:
    for batch in read_batches(file, None if domain else ["id", "text", "meta"]):
        names = [name for name in ("id", "meta", "domain") if name in batch.schema.names]
        if "text" not in batch.schema.names:
            raise InputError(f"{file} has no column text, only {', '.join(batch.schema.names)}. Rename one.")
        rows = batch.select(names).to_pylist() if names else [{}] * batch.num_rows
        for row, text in zip(rows, batch.column("text").cast(pa.large_binary()), strict=True):
            yield _document(text.as_py() or b"", row, domain, file)


def _document(data: bytes, row: Mapping[str, Any], domain: str, file: Path) -> Document:
    name = row.get("id") if len(str(row.get("id"))) == 32 else xxhash.xxh3_128_hexdigest(data)
    meta = row.get("meta")
    try:
        found = (orjson.loads(meta) if isinstance(meta, str) else meta or row).get("domain", domain)
    except (orjson.JSONDecodeError, AttributeError):
        found = None
    if not found or not isinstance(found, str):
        raise InputError(
            f"{file}: document {name} has no domain in its meta ({meta!r:.60}), and tokens are stored by "
            'domain. Give every document a meta like {"domain": "prose"}.'
        )
    return Document(str(name), found, data)
