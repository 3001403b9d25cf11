"""Evaluating: how fast the n-gram baseline is counted and scored, and a model scores held-out text.

The n-gram text is 2 M tokens with the frequencies of real text (Zipf) and no structure, the worst case for
counting: nearly every 5-gram is new. No peer is run beside it. `--json` prints one line a figure.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from tempfile import TemporaryDirectory

import jax
import numpy as np

from lmlab.evals.bpb import model_score, score_source
from lmlab.evals.ngrams import train_ngrams
from lmlab.models.config import Grug
from lmlab.models.decoder import init_params
from lmlab.storage import Path
from lmlab.tokens.store import Head, Source, open_store
from lmlab.tokens.write import ShardWriter, write_ledger

VOCAB, TOKENS, SEQ, RUNS = 8192, 2_000_000, 256, 3
DOCUMENTS, LONGEST = 100, 800


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    text = np.random.default_rng(0).zipf(1.2, TOKENS) % VOCAB
    sequences = np.split(text, np.arange(SEQ, TOKENS, SEQ))
    model = train_ngrams(sequences, vocab=VOCAB, eos_id=0, order=5)
    count = seconds(lambda: train_ngrams(sequences, vocab=VOCAB, eos_id=0, order=5))
    show("5-gram: count and smooth", TOKENS / count, as_json)
    show("5-gram: score", TOKENS / 4 / seconds(lambda: model.nats(text[: TOKENS // 4])), as_json)
    with TemporaryDirectory() as folder:
        source = held_out(Path(folder))
        config = Grug.sized(256, vocab=VOCAB)
        score = model_score(config, init_params(config, jax.random.key(0)))
        run = lambda: score_source(score, source, eos_id=0, seq=SEQ)  # noqa: E731 - timed twice
        run()
        show("Grug of 8 M parameters: score", source.token_count / seconds(run), as_json)


def held_out(folder: Path) -> Source:
    """Documents of random tokens, from a few to LONGEST."""
    random = np.random.default_rng(1)
    writer = ShardWriter(folder, "shard", Head(VOCAB, 0, "none@1"))
    for number in range(DOCUMENTS):
        tokens = random.integers(1, VOCAB, random.integers(1, LONGEST))
        writer.add("random", f"{number:032x}", len(tokens), [tokens])
    write_ledger(folder, writer.head, writer.finish())
    return open_store(folder).source("random")


def seconds(work: Callable[[], object]) -> float:
    """CPU-seconds, the median of RUNS."""
    taken = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return median(taken)


def show(name: str, tokens_per_s: float, as_json: bool) -> None:
    """One line for a person or a program."""
    figure = {"name": name, "ours": round(tokens_per_s), "peer": None, "peer_name": None, "ratio": None}
    figure |= {"unit": "tokens/CPU-s", "better": "higher", "same_work": None, "runs": RUNS}
    print(json.dumps(figure) if as_json else f"{name}: {tokens_per_s:,.0f} tokens/CPU-s")


if __name__ == "__main__":
    main()
