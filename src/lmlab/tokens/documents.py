"""Read a folder of documents (Parquet parts, in order) as a stream. Nothing else here knows Parquet."""

from collections.abc import Iterator
from typing import NamedTuple

import orjson
import pyarrow.parquet as pq

from lmlab.core.errors import InputError
from lmlab.storage import Path

ROWS_AT_ONCE = 256  # a batch of ordinary documents is about 1 MB; one huge record is held alone


class Document(NamedTuple):
    """One document. `id` is 32 hex digits of its text's xxh3-128; `size_bytes` counts UTF-8."""

    id: str
    domain: str
    text: str
    size_bytes: int


def read_documents(folder: Path) -> Iterator[Document]:
    """Every document of `folder` in the order of its parts, holding one batch of rows in memory."""
    for part in document_parts(folder):
        for batch in _open(part).iter_batches(ROWS_AT_ONCE, columns=["id", "text", "meta"]):
            for name, text, meta in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Document(name, _domain(meta, name, part), text, len(text.encode()))


def document_parts(folder: Path) -> list[Path]:
    """The Parquet parts of a documents folder, sorted; InputError when it has none."""
    parts = [path for path in folder.list() if path.name.endswith(".parquet")] if folder.exists() else []
    if not parts:
        raise InputError(
            f"{folder} holds no part-NNNNN-of-MMMMM.parquet, so there are no documents to read. "
            "Give the artifact of `curate` with its part, as in corpus['train']."
        )
    return parts


def _open(part: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(part.local)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(
            f"{part} is not a readable Parquet file ({error}). Build its corpus again."
        ) from error
    missing = {"id", "text", "meta"} - set(file.schema_arrow.names)
    if missing:
        raise InputError(
            f"{part} has no column {sorted(missing)}, so it is no documents file. "
            "Documents have the columns id, text, source_id and meta."
        )
    return file


def _domain(meta: str, name: str, part: Path) -> str:
    try:
        return orjson.loads(meta)["domain"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{part}: document {name} has no domain in its meta ({meta!r:.60}), and tokens are stored by "
            'domain. Give every document a meta like {"domain": "prose"}.'
        ) from error
