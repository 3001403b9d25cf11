"""The token store: what is written is read, and damage is named before it is used."""

import json
import time

import numpy as np
import pytest

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens import store as store_module
from lmlab.tokens.store import StoreWriter, open_store

DOCUMENTS = [("code", [5, 6]), ("prose", [7]), ("code", []), ("code", [8, 9, 10]), ("prose", [11, 12])]


def write(folder, *, vocab: int = 300) -> Path:
    folder.mkdir(exist_ok=True)
    with StoreWriter(Path(folder), vocab=vocab, eos_id=0, tokenizer="tokenizers/t@dev") as writer:
        for number, (domain, ids) in enumerate(DOCUMENTS):
            writer.add(domain, f"{number:032x}", 10 * number, np.array(ids, np.uint32))
        writer.finish()
    return Path(folder)


def check(folder: Path) -> None:
    store = open_store(folder)
    assert (store.domains, store.eos_id, store.tokens) == (("code", "prose"), 0, 13)
    code = store.source("code")
    assert code.tokens.tolist() == [5, 6, 0, 0, 8, 9, 10, 0]
    assert code.offsets.tolist() == [0, 3, 4, 8]
    assert (code.token_count, code.document_count) == (8, 3)
    assert code.byte_counts.tolist() == [0, 20, 30]
    assert [int(bytes(row).hex(), 16) for row in code.ids] == [0, 2, 3]
    assert store.source("prose").tokens.tolist() == [7, 0, 11, 12, 0]


def test_documents_come_back_by_domain(tmp_path) -> None:
    folder = write(tmp_path / "s")
    check(folder)
    assert open_store(folder).source("code").tokens.dtype == np.uint16


def test_shards_of_a_domain_read_as_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 3)
    folder = write(tmp_path / "s")
    assert len(open_store(folder).ledger.shards) == 3
    check(folder)


def test_large_vocabularies_use_four_bytes(tmp_path) -> None:
    assert open_store(write(tmp_path / "s", vocab=70_000)).source("code").tokens.dtype == np.uint32


def test_one_shard_is_mapped_not_copied(tmp_path) -> None:
    assert isinstance(open_store(write(tmp_path / "s")).source("code").tokens, np.memmap)


def test_two_thousand_shards_open_in_a_second_without_touching_any(tmp_path) -> None:
    shards = [
        {"file": f"web-{i:05d}", "domain": f"web{i % 50}", "tokens": 10, "documents": 2, "bytes": 30}
        for i in range(2000)
    ]
    ledger = {"format": 1, "dtype": "uint16", "vocab": 300, "eos_id": 0, "tokenizer": "t@1", "shards": shards}
    (tmp_path / "ledger.json").write_text(json.dumps(ledger))
    started = time.process_time()
    store = open_store(Path(tmp_path))
    total = sum(store.source(domain).token_count for domain in store.domains)
    assert time.process_time() - started < 1
    assert total == 20_000


@pytest.mark.parametrize("kind", ["tokens", "offsets", "bytes", "ids"])
def test_a_cut_file_is_named_when_it_is_touched(tmp_path, kind: str) -> None:
    folder = write(tmp_path / "s")
    file = tmp_path / "s" / f"code-00000.{kind}"
    file.write_bytes(file.read_bytes()[:-1])
    source = open_store(folder).source("code")
    with pytest.raises(InputError, match=rf"code-00000\.{kind} has \d+ bytes, and the ledger says \d+"):
        getattr(source, {"bytes": "byte_counts"}.get(kind, kind))


def test_a_missing_shard_is_named_and_other_domains_stay_readable(tmp_path) -> None:
    folder = write(tmp_path / "s")
    (tmp_path / "s" / "code-00000.tokens").unlink()
    store = open_store(folder)
    assert store.source("prose").tokens.size == 5
    with pytest.raises(InputError, match=r"code-00000\.tokens is missing"):
        _ = store.source("code").tokens


def test_offsets_of_another_store_are_refused(tmp_path) -> None:
    folder = write(tmp_path / "s")
    (tmp_path / "s" / "code-00000.offsets").write_bytes(np.array([0, 1, 2, 3]).tobytes())
    with pytest.raises(InputError, match="ends at 3, not 8"):
        _ = open_store(folder).source("code").offsets


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 2}, "format 2, and this lmlab reads format 1"), ({"new": 1}, "is not a ledger")],
)
def test_a_ledger_of_another_format_is_refused(tmp_path, change: dict, message: str) -> None:
    folder = write(tmp_path / "s")
    file = tmp_path / "s" / "ledger.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        open_store(folder)


def test_a_folder_without_ledger_is_no_store(tmp_path) -> None:
    with pytest.raises(InputError, match=r"has no ledger\.json"):
        open_store(Path(tmp_path))


def test_an_unknown_domain_names_the_known_ones(tmp_path) -> None:
    with pytest.raises(InputError, match=r"no domain 'svg'. It has code, prose"):
        open_store(write(tmp_path / "s")).source("svg")


def test_a_failed_write_leaves_nothing_visible(tmp_path) -> None:
    def fail() -> None:
        with StoreWriter(Path(tmp_path), vocab=300, eos_id=0, tokenizer="t@1") as writer:
            writer.add("code", "0" * 32, 3, np.array([1, 2]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
