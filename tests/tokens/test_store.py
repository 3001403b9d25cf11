"""The token store: what is written is read, and damage is named before it is used."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lmlab.core.errors import InputError
from lmlab.storage import Path
from lmlab.tokens import write as writing
from lmlab.tokens.store import Head, open_store, verify
from lmlab.tokens.write import ShardWriter, write_ledger

DOCUMENTS = [("code", [5, 6]), ("prose", [7]), ("code", []), ("code", [8, 9, 10]), ("prose", [11, 12])]


def check_files(folder: Path) -> None:
    verify(folder, open_store(folder).ledger.shards)


def write(folder, *, vocab: int = 300) -> Path:
    folder.mkdir(exist_ok=True)
    writer = ShardWriter(Path(folder), "shard", Head(vocab, 0, "tokenizers/t@dev"))
    for number, (domain, ids) in enumerate(DOCUMENTS):
        writer.add(domain, f"{number:032x}", 10 * number, [np.array(ids, np.uint32)])
    write_ledger(Path(folder), writer.head, writer.finish())
    return Path(folder)


def check(folder: Path) -> None:
    store = open_store(folder)
    assert (store.domains, store.eos_id, store.tokens) == (("code", "prose"), 0, 13)
    code = store.source("code")
    assert np.asarray(code.tokens).tolist() == [5, 6, 0, 0, 8, 9, 10, 0]
    assert code.offsets.tolist() == [0, 3, 4, 8]
    assert (code.token_count, code.document_count) == (8, 3)
    assert code.byte_counts.tolist() == [0, 20, 30]
    assert [int(bytes(row).hex(), 16) for row in code.ids] == [0, 2, 3]
    assert np.asarray(store.source("prose").tokens).tolist() == [7, 0, 11, 12, 0]


def test_documents_come_back_by_domain(tmp_path) -> None:
    folder = write(tmp_path / "s")
    check(folder)
    assert open_store(folder).source("code").tokens.dtype == np.uint16


def test_shards_of_a_domain_read_as_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SHARD_TOKENS", 3)
    folder = write(tmp_path / "s")
    assert len(open_store(folder).ledger.shards) == 4
    check(folder)


def test_large_vocabularies_use_four_bytes(tmp_path) -> None:
    assert open_store(write(tmp_path / "s", vocab=70_000)).source("code").tokens.dtype == np.uint32


def test_slices_within_a_shard_are_mapped_not_copied(tmp_path) -> None:
    assert isinstance(open_store(write(tmp_path / "s")).source("code").tokens[1:4], np.memmap)


def test_two_thousand_shards_open_in_a_second_without_touching_any(tmp_path) -> None:
    runs = [{"domain": f"web{i % 50}", "tokens": 10, "documents": 2, "bytes": 30} for i in range(2000)]
    shards = [
        {
            "file": f"shard-{i:05d}",
            "encoder": "compiled",
            "hashes": {},
            "runs": [run, run | {"domain": "all"}],
        }
        for i, run in enumerate(runs)
    ]
    head = {"vocab": 300, "eos_id": 0, "tokenizer": "t@1"}
    (tmp_path / "ledger.json").write_text(json.dumps({"format": 2, "head": head, "shards": shards}))
    started = time.process_time()
    store = open_store(Path(tmp_path))
    total = sum(store.source(domain).token_count for domain in store.domains)
    assert time.process_time() - started < 1
    assert total == 40_000


@pytest.mark.parametrize("kind", ["tokens", "offsets", "bytes", "ids"])
def test_a_cut_file_is_named_when_it_is_touched(tmp_path, kind: str) -> None:
    folder = write(tmp_path / "s")
    file = tmp_path / "s" / f"shard.{kind}"
    file.write_bytes(file.read_bytes()[:-1])
    source = open_store(folder).source("code")
    with pytest.raises(InputError, match=rf"shard\.{kind} has \d+ bytes, and the ledger says \d+"):
        np.asarray(getattr(source, {"bytes": "byte_counts"}.get(kind, kind)))


def test_a_missing_shard_is_named_and_other_shards_stay_readable(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(writing, "SHARD_TOKENS", 3)
    folder = write(tmp_path / "s")
    (tmp_path / "s" / "shard.tokens").unlink()
    code = open_store(folder).source("code")
    assert code.tokens[3:8].tolist() == [0, 8, 9, 10, 0]
    with pytest.raises(InputError, match=r"shard\.tokens is missing"):
        _ = code.tokens[:5]


@given(cuts=st.lists(st.integers(0, 8), min_size=2, max_size=2))
def test_slices_over_shards_are_those_of_the_whole(split_store: Path, cuts: list[int]) -> None:
    tokens = open_store(split_store).source("code").tokens
    assert tokens.size == 8
    assert tokens[min(cuts) : max(cuts)].tolist() == [5, 6, 0, 0, 8, 9, 10, 0][min(cuts) : max(cuts)]


@pytest.fixture(scope="module")
def split_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SHARD_TOKENS", 3)
        return write(tmp_path_factory.mktemp("split") / "s")


@pytest.mark.parametrize("kind", ["tokens", "offsets", "bytes", "ids"])
def test_a_changed_file_is_found_by_its_hash(tmp_path, kind: str) -> None:
    folder = write(tmp_path / "s")
    check_files(folder)
    file = tmp_path / "s" / f"shard.{kind}"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(InputError, match=rf"shard\.{kind} has xxh3 [0-9a-f]+, and the ledger says"):
        check_files(folder)


def test_offsets_of_another_store_are_refused(tmp_path) -> None:
    folder = write(tmp_path / "s")
    (tmp_path / "s" / "shard.offsets").write_bytes(np.array([0, 1, 2, 3, 4, 13]).tobytes())
    with pytest.raises(InputError, match="code ends at 3, not 8"):
        _ = open_store(folder).source("code").offsets


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 3}, "format 3, and this lmlab reads format 2"), ({"new": 1}, "is not a ledger")],
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
