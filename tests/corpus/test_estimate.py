"""Estimates hold against exact counts on files of every kind, and say how far they may be off."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lmlab.core.errors import InputError
from lmlab.corpus import Counted, Estimate, diff_counts, estimate_tokens, read_counts, write_counts
from lmlab.storage import Path


def words(texts):
    return sum(len(text.split()) for text in texts)


def texts_of(seed, count=2000):
    """Documents of very different lengths: the estimate must not count documents."""
    dice = random.Random(seed)
    known = ["".join(dice.choices("abcdefghij", k=dice.randrange(2, 5 + seed))) for _ in range(100)]
    return [" ".join(dice.choices(known, k=int(dice.paretovariate(1.2) * 20))) for _ in range(count)]


def write(path, texts):
    lines = b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(texts))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=200)
    elif path.suffix == ".txt":
        path.write_text("\n".join(texts))
    else:
        packers = {".gz": gzip.compress, ".zst": zstandard.compress}
        path.write_bytes(packers[path.suffix](lines) if path.suffix in packers else lines)
    return Path(path)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "txt"])
def test_an_estimate_is_right_within_its_error(tmp_path, kind):
    corpus = [texts_of(seed) for seed in range(4)]
    files = [write(tmp_path / f"{i}.{kind}", texts) for i, texts in enumerate(corpus)]
    exact = sum(map(words, corpus))
    found = estimate_tokens(files, words)
    assert abs(found.tokens - exact) <= max(1.5 * found.error, 0.02 * exact)
    assert found.error < 0.15 * exact
    found.check(exact)


def test_the_first_file_does_not_stand_for_the_others(tmp_path):
    short, long = ["a b c d"] * 500, ["internationalization " * 9] * 20_000
    files = [write(tmp_path / "0.jsonl", short), write(tmp_path / "1.jsonl", long)]
    exact = words(short) + words(long)
    assert abs(estimate_tokens(files, words).tokens - exact) < 0.05 * exact


def test_only_windows_are_counted_and_the_same_seed_draws_the_same(tmp_path):
    file, counted = write(tmp_path / "0.jsonl", texts_of(1, 12_000)), []
    first = estimate_tokens([file], lambda texts: counted.append(len(texts)) or words(texts), windows=4)
    assert sum(counted) < 9_000
    assert first == estimate_tokens([file], words, windows=4)
    assert first != estimate_tokens([file], words, windows=4, seed=1)


def test_a_record_larger_than_a_window_is_counted_too(tmp_path):
    file = write(tmp_path / "0.jsonl", ["word " * 400_000])
    assert abs(estimate_tokens([file], words).tokens - 400_000) < 8_000


def test_an_exact_count_far_off_is_refused():
    estimate = Estimate(1_000_000, 10_000, 48)
    estimate.check(1_025_000)
    with pytest.raises(InputError, match=r"1200000 tokens were counted and 1M ± 10k tokens"):
        estimate.check(1_200_000)


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.txt"])
def test_files_without_anything_are_an_error(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="hold no record"):
        estimate_tokens([Path(tmp_path / name)], words)


@pytest.mark.parametrize(
    ("kind", "said"), [("parquet", "column 'body', only text"), ("jsonl", "'body' in any")]
)
def test_a_missing_column_is_named(tmp_path, kind, said):
    with pytest.raises(InputError, match=f"has no {said}"):
        estimate_tokens([write(tmp_path / f"0.{kind}", ["a"] * 9)], words, field="body")


ROWS = [Counted("b", 7, "estimate", "2026-11-30"), Counted("a", 5, "Llama 3, exact", "2026-11-01")]


@pytest.mark.parametrize("name", ["counts.parquet", "counts.json"])
def test_a_snapshot_is_a_table_in_the_order_of_sources(tmp_path, name):
    write_counts(Path(tmp_path / name), ROWS)
    assert read_counts(Path(tmp_path / name)) == ROWS[::-1]


def test_two_snapshots_differ_by_what_came_went_and_changed():
    new = [Counted("b", 9, "exact", "2026-12-01"), Counted("c", 1, "said", "2026-12-01")]
    assert diff_counts(ROWS, new) == [("a", 5, 0, "gone"), ("b", 7, 9, "exact"), ("c", 0, 1, "said")]
    assert diff_counts(ROWS, ROWS) == []


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_a_file_that_was_cut_off_is_named(tmp_path, kind):
    file = write(tmp_path / f"0.{kind}", texts_of(3, 500))
    file.write_bytes(file.read_bytes()[: file.size() // 2])
    with pytest.raises(InputError, match=r"0\.\S+ can't be read"):
        estimate_tokens([file], words)
