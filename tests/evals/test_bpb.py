"""Scoring with a model: every token of every document once, as if each document were alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from lmlab.evals.bpb import best_fit, lay_out, model_score, score_source, windows_of
from lmlab.models import init_params, logits
from lmlab.models.config import Dense, Grug, Model
from lmlab.models.decoder import forward
from lmlab.storage import Path
from lmlab.tokens.store import Head, Source, open_store
from lmlab.tokens.write import ShardWriter, write_ledger

VOCAB, SEQ, EOS = 64, 16, 0
LENGTHS = [3, 0, 16, 1, 17, 60, 15, 5, 28, 29]
OFFSETS = st.lists(st.integers(0, 70), min_size=1, max_size=30).map(lambda n: np.cumsum([0, *np.add(n, 1)]))


@given(offsets=OFFSETS, seq=st.integers(4, 32))
def test_every_text_token_is_scored_once_and_with_enough_past(offsets, seq: int) -> None:
    tokens = np.arange(1, offsets[-1] + 1)
    tokens[offsets[1:] - 1] = EOS
    windows = list(windows_of(offsets, seq))
    rows = lay_out(windows, tokens, eos_id=EOS, seq=seq)
    is_scored = rows.documents >= 0
    assert sorted(rows.targets[is_scored]) == sorted(tokens[tokens != EOS])
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    assert np.array_equal(rows.documents[is_scored], owner[rows.targets[is_scored] - 1])
    for row, column in np.argwhere(is_scored):
        target = int(rows.targets[row, column])
        past = int((rows.segments[row, :column] == rows.segments[row, column]).sum())
        before = target - 1 - int(offsets[rows.documents[row, column]])  # its tokens before this one
        assert past == before or past >= seq // 4
        assert rows.tokens[row, column] == (target - 1 if before else EOS)


@given(lengths=st.lists(st.integers(1, 20), max_size=60))
def test_windows_in_a_row_do_not_overlap_and_rows_are_well_filled(lengths: list[int]) -> None:
    taken: set[tuple[int, int]] = set()
    placed = best_fit(lengths, 20)
    for (row, column), length in zip(placed, lengths, strict=True):
        cells = {(row, place) for place in range(column, column + length)}
        assert column + length <= 20
        assert not cells & taken
        taken |= cells
    filled = sorted(np.bincount([row for row, _ in taken])) if taken else []
    assert all(row + other > 20 for row, other in pairwise(filled))  # no two rows would fit into one


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = Path(tmp_path_factory.mktemp("store"))
    random = np.random.default_rng(0)
    writer = ShardWriter(folder, "shard", Head(VOCAB, EOS, "t@1"))
    for number, length in enumerate(LENGTHS):
        writer.add("text", f"{number:032x}", 1, [random.integers(1, VOCAB, length)])
    write_ledger(folder, writer.head, writer.finish())
    return open_store(folder).source("text")


@pytest.fixture(scope="module", params=["dense", "grug"])
def model(request: pytest.FixtureRequest) -> tuple[Model, dict]:
    kind = {"dense": Dense, "grug": Grug}[request.param]
    config = kind.sized(32, vocab=VOCAB, layers=1)
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    return config, jax.tree.map(lambda x: jnp.float32(random.normal(0, 0.3, x.shape)), shapes)


def alone(scores_of: Callable[[np.ndarray], np.ndarray], ids: np.ndarray) -> float:
    """Nats of one document by the definition: plain passes over it alone, softmax in numpy."""
    stream = np.concatenate([[EOS], ids])
    nats, done = 0.0, 0
    while done < len(ids):
        stop = min(len(ids), done + (SEQ - SEQ // 4 if done else SEQ))
        start = max(0, stop - SEQ)
        inputs = np.zeros((1, SEQ), np.int32)  # one shape; what comes later is not seen
        inputs[0, : stop - start] = stream[start:stop]
        scores = np.asarray(scores_of(inputs), np.float64)[0]
        log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        nats -= sum(log_p[place - start, stream[place + 1]] for place in range(done, stop))
        done = stop
    return nats


def test_scores_equal_a_plain_pass_over_each_document_alone(model, source: Source) -> None:
    found = score_source(model_score(*model, jnp.float32), source, eos_id=EOS, seq=SEQ)
    config, params = model
    if isinstance(config, Grug):
        config = replace(config, capacity_factor=100.0)
    plain = jax.jit(
        lambda ids: logits(params, config, forward(params, config, ids, dtype=jnp.float32).hidden)
    )
    expected = [alone(plain, source.tokens[a : b - 1]) for a, b in pairwise(source.offsets)]
    assert found[1] == 0  # an empty document
    assert found.tolist() == pytest.approx(expected, rel=2e-4)  # float32 sums in another order


def test_all_batches_have_one_shape(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmlab.evals.bpb.BATCH_TOKENS", 3 * SEQ)
    shapes, scored = set(), []

    def score(batch):
        shapes.update(array.shape for array in batch)
        scored.append(np.asarray(batch.weights))
        return np.asarray(batch.weights)

    counts = score_source(score, source, eos_id=EOS, seq=SEQ)
    assert shapes == {(3, SEQ)}
    assert len(scored) > 2
    assert counts.tolist() == LENGTHS
