"""Read a folder of documents as a stream: every document of every part, in order."""

from collections.abc import Iterator
from typing import NamedTuple

import orjson
import pyarrow as pa

from lmlab.core.errors import InputError
from lmlab.corpus.schema import parts_of
from lmlab.dataflow.files import read_parquet
from lmlab.storage import Path


class Document(NamedTuple):
    """One document. `id` is 32 hex digits of its text's xxh3-128; `data` is its text in UTF-8."""

    id: str
    domain: str
    data: bytes


def read_documents(folder: Path) -> Iterator[Document]:
    """Every document of `folder`, in the order of its parts; holds one part (about 16 MB) in memory."""
    for part in parts_of(folder):
        table = read_parquet(part, ["id", "text", "meta"])
        ids, metas = table.column("id").to_pylist(), table.column("meta").to_pylist()
        texts = table.column("text").cast(pa.large_binary())
        for name, data, meta in zip(ids, texts, metas, strict=True):
            yield Document(name, _domain(meta, name, part), data.as_py())


def _domain(meta: str, name: str, part: Path) -> str:
    try:
        return orjson.loads(meta)["domain"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{part}: document {name} has no domain in its meta ({meta!r:.60}), and tokens are stored by "
            'domain. Give every document a meta like {"domain": "prose"}.'
        ) from error
