"""Documents as the corpus writes them, and one small tokenizer for the session."""

from collections.abc import Callable, Sequence
from pathlib import Path as LocalPath
from pydoc_data.topics import topics

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import xxhash

from lmlab.artifacts import Artifact
from lmlab.storage import Path
from lmlab.tokens.tokenizer import TRAINED, Loaded, load_tokenizer, save_tokenizer
from lmlab.tokens.train import train_bpe

SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.large_string()), ("source_id", pa.string()), ("meta", pa.string())]
)
Corpus = Callable[..., Artifact]


@pytest.fixture
def corpus(tmp_path: LocalPath) -> Corpus:
    """A function that writes (domain, text) pairs as sorted, partitioned documents."""

    def write(documents: Sequence[tuple[str, str]], parts: int = 2, name: str = "corpus") -> Artifact:
        rows = sorted((xxhash.xxh3_128_hexdigest(text.encode()), domain, text) for domain, text in documents)
        folder = tmp_path / name
        folder.mkdir()
        for part in range(parts):
            own = rows[part::parts]
            columns = {
                "id": [row[0] for row in own],
                "text": [row[2] for row in own],
                "source_id": ["test"] * len(own),
                "meta": [orjson.dumps({"domain": row[1]}).decode() for row in own],
            }
            pq.write_table(
                pa.table(columns, SCHEMA),
                folder / f"part-{part:05d}-of-{parts:05d}.parquet",
                compression="zstd",
            )
        return Artifact.at(Path(folder), name=f"corpora/{name}", version="dev")

    return write


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Real text that every Python installation has."""
    return [topics[key] for key in sorted(topics)]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """A saved tokenizer of 1,000 ids."""
    folder = Path(tmp_path_factory.mktemp("tokenizer"))
    save_tokenizer(Loaded(train_bpe(iter(texts[:40]), 1000), TRAINED), folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> tokenizers.Tokenizer:
    """The same tokenizer, loaded for encoding documents."""
    return load_tokenizer(tokenizer_folder)
