"""Stores out of stores: merged, sliced to a size, no document twice, and the card that tells it."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from lmlab.artifacts import Out
from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.card import card
from lmlab.tokens.selecting import select_documents
from lmlab.tokens.steps import TokenStore, merge_tokens, slice_tokens, store_of
from lmlab.tokens.store import Head, Ledger, open_store, verify
from lmlab.tokens.write import ShardWriter, write_ledger

HEAD = Head(300, 0, "tokenizers/t@dev", "ab12")


def check_files(folder: Path) -> None:
    verify(folder, open_store(folder).ledger.shards)


def store(folder, documents: dict[str, range], *, head: Head = HEAD, mask: bool = False) -> TokenStore:
    """A store whose document number n of any domain is n ids of n, in two shards."""
    shards = []
    for half in range(2):
        writer = ShardWriter(Path(folder), f"shard-{half}", head, "compiled")
        for domain, numbers in documents.items():
            for number in numbers[half::2]:
                tokens, marks = np.full(number, number), np.arange(number) % 2
                writer.add(domain, f"{number:032x}", 2 * number, [tokens], marks if mask else None)
        shards += writer.finish()
    return made(folder, store_of(write_ledger(Path(folder), head, shards)))


def made(folder, result: TokenStore) -> TokenStore:
    """The artifact that a step's result becomes."""
    return TokenStore.at(Path(folder), name=f"tokens/{folder.name}", version="dev", **vars(result))


def held(folder, domain: str) -> list[int]:
    """Numbers of the documents, and that each is whole."""
    source = open_store(Path(folder)).source(domain)
    numbers = [int(bytes(row).hex(), 16) for row in source.ids]
    for number, (start, end) in zip(numbers, pairwise(source.offsets), strict=True):
        assert source.tokens[int(start) : int(end)].tolist() == [number] * number + [0]
    assert source.byte_counts.tolist() == [2 * number for number in numbers]
    return numbers


def out_at(folder) -> Out:
    return Out.at(Path(folder), name="tokens/new", version="dev")


def test_merged_stores_hold_every_document_once(tmp_path) -> None:
    one = store(tmp_path / "a", {"code": range(1, 6), "prose": range(20, 23)})
    two = store(tmp_path / "b", {"code": range(4, 9)})
    result = merge_tokens.body(out_at(tmp_path / "new"), (one, two))
    assert sorted(held(tmp_path / "new", "code")) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(held(tmp_path / "new", "prose")) == [20, 21, 22]
    assert (result.documents, result.domains) == (11, ("code", "prose"))
    check_files(Path(tmp_path / "new"))
    rows = open_store(Path(tmp_path / "new")).ledger.sources
    assert [(row["store"], row["repeated"]) for row in rows if row["domain"] == "code"] == [
        ("tokens/a@dev", 0),
        ("tokens/b@dev", 2),
    ]


def test_a_slice_fills_the_shares_without_passing_them_and_leaves_out_what_was_held_out(tmp_path) -> None:
    whole = store(tmp_path / "a", {"code": range(1, 60), "prose": range(100, 160), "svg": range(200, 210)})
    apart = slice_tokens.body(out_at(tmp_path / "heldout"), (whole,), 400, {"code": 1, "prose": 1})
    assert 0 < apart.tokens <= 400
    apart = made(tmp_path / "heldout", apart)
    result = slice_tokens.body(out_at(tmp_path / "new"), (whole,), 1_000, {"code": 3, "prose": 1}, (apart,))
    totals = open_store(Path(tmp_path / "new")).ledger.totals()
    assert 650 < totals["code"].tokens <= 750
    assert 100 < totals["prose"].tokens <= 250
    assert result.domains == ("code", "prose")
    assert not set(held(tmp_path / "new", "code")) & set(held(tmp_path / "heldout", "code"))


def test_masks_come_along(tmp_path) -> None:
    whole = store(tmp_path / "a", {"chat": range(1, 30)}, mask=True)
    slice_tokens.body(out_at(tmp_path / "new"), (whole,), 100, {"chat": 1})
    source = open_store(Path(tmp_path / "new")).source("chat")
    for start, end in pairwise(source.offsets):
        length = int(end - start) - 1
        assert source.mask[int(start) : int(end)].tolist() == [*(np.arange(length) % 2).tolist(), 0]


def test_stores_of_another_tokenizer_are_not_mixed(tmp_path) -> None:
    one = store(tmp_path / "a", {"code": range(1, 6)})
    two = store(tmp_path / "b", {"code": range(4, 9)}, head=Head(300, 0, "u@1", "cd34"))
    with pytest.raises(
        InputError, match=r"tokens/b@dev has .*'cd34', False\), and tokens/a@dev .*'ab12', False\)"
    ):
        merge_tokens.body(out_at(tmp_path / "new"), (one, two))


def test_an_unknown_domain_or_an_impossible_share_is_refused(tmp_path) -> None:
    one = store(tmp_path / "a", {"code": range(1, 6)})
    with pytest.raises(InputError, match=r"no store has the domain 'svg'\. They have code"):
        select_documents(Path(tmp_path / "new"), {"a": open_store(one.path)}, {"svg": 10})
    with pytest.raises(ConfigError, match="shares above 0"):
        slice_tokens("tokens/x", (one,), 100, {"code": 0})


def test_every_number_on_the_card_comes_from_the_ledger(tmp_path) -> None:
    whole = store(tmp_path / "a", {"code": range(1, 60), "prose": range(100, 160)})
    slice_tokens.body(out_at(tmp_path / "new"), (whole,), 2_000, {"code": 1, "prose": 1})
    ledger = open_store(Path(tmp_path / "new")).ledger
    text = (tmp_path / "new" / "README.md").read_text()
    assert text == card(ledger, "tokens/new@dev")
    assert text.startswith("---\npretty_name: tokens/new@dev\n")
    code = ledger.totals()["code"]
    assert f"| code | {code.documents:,} | {code.tokens:,} |" in text

    def doubled(value: object) -> object:
        if isinstance(value, dict):
            return {key: doubled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [doubled(item) for item in value]
        return 2 * value if isinstance(value, int) else value

    other = card(msgspec.convert(doubled(msgspec.to_builtins(ledger)), Ledger), "tokens/new@dev")
    for before, after in zip(text.splitlines(), other.splitlines(), strict=True):
        if before.startswith(("| code", "(")) or "tokens of" in before:
            assert before != after
    assert f"{2 * code.tokens:,}" in other
