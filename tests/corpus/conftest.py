"""Small archives and corpora, written as `fetch` and `extract` write them."""

from collections.abc import Callable, Iterable
from pathlib import Path as LocalPath
from typing import Any

import pyarrow as pa
import pytest
from sample_archives import prose, write_tar, write_zip

from lmlab.artifacts import Out
from lmlab.core.config import canonical, encode
from lmlab.corpus import Documents, Raw, Slice
from lmlab.corpus.schema import DOCUMENTS, document_id, part_name, part_of, sorted_by_id
from lmlab.dataflow import read_parquet, write_parquet
from lmlab.storage import Path, write_json


@pytest.fixture
def out(tmp_path: LocalPath) -> Callable[..., Out]:
    """An output folder by name."""
    return lambda name="out": Out.at(str(tmp_path / name), name=name)


@pytest.fixture
def raw(tmp_path: LocalPath) -> Callable[..., Raw]:
    """Make a raw artifact of archives: {file: (members, slices)}."""

    def make(archives: dict[str, tuple[dict[str, bytes], tuple[Slice, ...]]]) -> Raw:
        folder = tmp_path / "raw"
        (folder / "archives").mkdir(parents=True)
        entries: list[dict[str, Any]] = []
        for file, (members, slices) in archives.items():
            write = write_zip if file.endswith((".zip", ".whl")) else write_tar
            write(folder / "archives" / file, members)
            size = (folder / "archives" / file).stat().st_size
            about = {"file": file, "package": file.split("-")[0], "license": "MIT", "bytes": size}
            entries.append({**about, "slices": [encode(piece) for piece in slices]})
        write_json(Path(folder) / "manifest.json", {"source": "test", "archives": entries})
        return Raw.at(str(folder), archives=len(entries), size_bytes=sum(e["bytes"] for e in entries))

    return make


@pytest.fixture
def documents(tmp_path: LocalPath) -> Callable[..., Documents]:
    """Make a documents artifact of (domain, source_id, text) triples."""

    def make(rows: Iterable[tuple[str, str, str]], parts: int = 2, name: str = "documents") -> Documents:
        table = pa.Table.from_pylist(
            [
                {"id": document_id(text), "text": text, "source_id": source, "meta": canonical({"domain": d})}
                for d, source, text in rows
            ],
            schema=DOCUMENTS,
        )
        part = part_of(table.column("id").to_pylist(), parts)
        for index in range(parts):
            own = sorted_by_id(table.filter(pa.array(part == index)))
            write_parquet(Path(tmp_path / name) / part_name(index, parts), own)
        size = sum(len(text.encode()) for _, _, text in rows)
        return Documents.at(str(tmp_path / name), documents=table.num_rows, size_bytes=size)

    return make


@pytest.fixture
def rows_of() -> Callable[[Path], list[dict[str, Any]]]:
    """All rows of the parts in a folder, in order; none if the folder is not there."""

    def read(folder: Path) -> list[dict[str, Any]]:
        parts = [path for path in folder.list() if path.name.startswith("part-")]
        return [row for path in parts for row in read_parquet(path).to_pylist()]

    return read


@pytest.fixture
def enough() -> list[tuple[str, str, str]]:
    """Two domains of 40 different documents each, about 3 kB every one."""
    return [
        (domain, f"{domain}/{i}", prose(100 * k + i, 500))
        for k, domain in enumerate(("code", "prose"))
        for i in range(40)
    ]
