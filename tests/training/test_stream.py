"""What a run reads: rows cut from documents, the mixture over sources, the held-out pieces, what was seen."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmlab.artifacts import Artifact
from lmlab.core.errors import ConfigError, InputError
from lmlab.tokens.store import open_store
from lmlab.training.data import open_inputs, seen_tokens
from lmlab.training.loop import fit
from lmlab.training.recipe import Mix, Run
from lmlab.training.stream import PADDING, Source, Stream, held_out, prefetched, sources_of

Recipe = Callable[..., Run]
Write = Callable[..., Artifact]


def source(name: str, size: int, weight: float = 1.0, offset: int = 0) -> Source:
    tokens = (np.arange(size) + offset).astype(np.uint32)
    return Source(name=name, tokens=tokens, weight=weight, vocab=1 << 31, eos_id=0)


def stream(sources: list[Source], block: int = 16) -> Stream:
    return Stream(sources, batch=4, seq=8, block=block, seed=3)


def test_targets_are_the_next_tokens_across_the_row_border() -> None:
    rows = stream([source("a", 1000)]).batch(0)
    assert rows.tokens.shape == (4, 8)
    assert np.array_equal(rows.targets, rows.tokens + 1)
    assert np.all(rows.tokens[:, 0] % 8 == 0)  # rows are cut every `seq` tokens


def test_a_document_begins_a_segment_with_its_end_token() -> None:
    """The end token before a document is the first thing the model sees of it, and its first token is a
    target: generation starts the same way."""
    tokens = np.asarray([5, 6, 0, 7, 8, 9, 0, 4, 3], np.uint16)
    whole = Source(name="a", tokens=tokens, weight=1.0, vocab=32, eos_id=0)
    rows = Stream([whole], batch=1, seq=8, block=1, seed=0).batch(0)
    assert rows.tokens[0].tolist() == [5, 6, 0, 7, 8, 9, 0, 4]
    assert rows.segments[0].tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert rows.targets[0].tolist() == [6, 0, 7, 8, 9, 0, 4, 3]
    assert np.all(rows.weights == 1)


def test_an_epoch_reads_every_example_once() -> None:
    """With one source the mixture is that source's order, so its example numbers can be read off the rows."""
    size = 4 * 25
    order = stream([source("a", size * 8 + 1)])
    for epoch in range(2):
        seen = [int(row[0]) // 8 for step in range(25) for row in order.batch(25 * epoch + step).tokens]
        assert sorted(seen) == list(range(size))


def test_each_source_gets_its_exact_share_in_every_block() -> None:
    sources = [source("a", 900, 0.5), source("b", 900, 0.25, 10_000), source("c", 900, 0.25, 20_000)]
    order = stream(sources, block=16)
    assert order.counts == [8, 4, 4]
    for block in range(6):
        firsts = [int(row[0]) // 10_000 for step in range(4) for row in order.batch(4 * block + step).tokens]
        assert Counter(firsts) == {0: 8, 1: 4, 2: 4}
    assert order.sequences(8) == {"a": 16, "b": 8, "c": 8}
    counted = Counter(int(row[0]) // 10_000 for step in range(10) for row in order.batch(step).tokens)
    assert list(order.sequences(10).values()) == [counted[i] for i in range(3)]


def test_a_source_too_small_for_a_place_in_a_block_is_reported() -> None:
    order = stream([source("a", 900, 1000.0), source("rare", 900, 0.1)], block=16)
    assert order.unread == ["rare"]


def test_a_source_without_a_whole_sequence_is_an_error() -> None:
    with pytest.raises(InputError, match="source b has 8 tokens, too few for one sequence of 8"):
        stream([source("a", 900), source("b", 8)])


def test_prefetching_yields_the_same_rows_in_order() -> None:
    order = stream([source("a", 900)])
    fetched = list(prefetched(order, 3, 7))
    assert [step for step, _ in fetched] == [3, 4, 5, 6]
    for step, rows in fetched:
        assert np.array_equal(rows.tokens, order.batch(step).tokens)
    assert list(prefetched(order, 7, 7)) == []


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, 0.8), (0.5, 2 / 3), (0.0, 0.5)])
def test_alpha_evens_out_the_domains(write: Write, alpha: float, expected: float) -> None:
    made = write("two", {"large": [[1] * 399], "small": [[2] * 99]})
    found = sources_of({"two": open_store(made.path)}, {"two": 3.0}, alpha)
    assert [s.name for s in found] == ["two/large", "two/small"]
    assert found[0].weight == pytest.approx(3 * expected)
    assert sum(s.weight for s in found) == pytest.approx(3)


def test_weights_between_stores_hold_whatever_their_sizes(recipe: Recipe, write: Write) -> None:
    first = write("first", {"up": [[1] * 2000]})
    second = write("second", {"up": [[2] * 400], "down": [[3] * 400]})
    order = open_inputs(recipe(data=Mix({first: 0.75, second: 0.25}, block=8))).stream
    read = Counter(int(row[1]) for step in range(8) for row in order.batch(step).tokens)
    assert read == {1: 24, 2: 4, 3: 4}


def test_two_stores_of_one_address_are_refused(recipe: Recipe, store: Artifact) -> None:
    again = Artifact.at(store.path, name=store.name, version="dev")
    with pytest.raises(ConfigError, match="tokens/train@dev"):
        open_inputs(recipe(data=Mix({store: 1.0, again: 1.0})))


def test_held_out_pieces_are_whole_documents_whose_bytes_are_known(write: Write) -> None:
    long, short = [3] * 40, [4] * 10
    made = write("held", {"a": [long, short, [5] * 9, [6] * 30], "b": [long]})
    fits, too_long = held_out(open_store(made.path), seq=16, budget=32)
    # In stored order what still fits: 11 + 10 tokens with their ends; then nothing else does.
    assert fits.size_bytes == 2 * (10 + 9)
    assert int(fits.rows.weights.sum()) == 10 + 9
    scored = fits.rows.targets[fits.rows.weights > 0]
    assert scored.tolist() == [4] * 10 + [5] * 9
    # No document fits, so the shortest one is read whole rather than a piece of unknown bytes.
    assert too_long.size_bytes == 2 * 40
    assert int(too_long.rows.weights.sum()) == 40


def test_held_out_batches_have_one_shape_and_their_padding_is_no_text(write: Write) -> None:
    made = write("held", {"a": [[3] * 40]})
    (piece,) = held_out(open_store(made.path), seq=16, budget=32)
    batches = list(piece.batches())
    assert [rows.tokens.shape for rows in batches] == [(2, 16), (2, 16)]
    assert sum(float(rows.weights.sum()) for rows in batches) == 40
    segments = np.concatenate([rows.segments for rows in batches]).reshape(-1)
    assert np.all(segments[:40] >= 0)
    assert np.all(segments[41:] == PADDING)


def test_seen_tokens_are_exactly_what_was_fed(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(steps=5)
    fit(run, tmp_path / "run")
    fed = open_inputs(run).stream
    expected = np.concatenate([fed.batch(step).tokens for step in range(5)])
    assert np.array_equal(np.stack(list(seen_tokens(tmp_path / "run", run.data.stores))), expected)


def test_seen_tokens_need_the_stores_of_the_recipe(recipe: Recipe, tmp_path: Path) -> None:
    run = recipe(steps=1)
    fit(run, tmp_path / "run")
    with pytest.raises(InputError, match=rf"trained on {next(iter(run.data.stores)).address}.*given: none"):
        next(seen_tokens(tmp_path / "run", ()))
