"""The quick start: raw text to a served, evaluated and reported model, in about ten minutes on two cores.

Every setting that decides a number stands here. `make run` runs it; `-- --steps 50` changes a field.
"""

from dataclasses import dataclass, replace

import lmlab as lab


@dataclass(frozen=True)
class Config:
    """What the command line can change."""

    source: str = "pypi+npm"
    """Where the text comes from: pypi+npm, pypi, or stdlib (this interpreter's own library, offline)."""
    vocab: int = 8192
    """Ids of the tokenizer."""
    hidden: int = 256
    """Width of the main model."""
    seq: int = 256
    """Tokens per sequence."""
    batch: int = 16
    """Sequences per step."""
    steps: int = 300
    """Steps of the main model."""
    rungs: tuple[int, ...] = (64, 96, 160)
    """Widths of the ladder's models."""


def build(config: Config = Config()) -> lab.Artifact:
    """Text, tokens, a ladder, a bet, the run it is about, a dense baseline, scores, a server, a report."""
    raw = lab.fetch("raw/quickstart", lab.quickstart_sources(config.source))
    documents = lab.extract("documents/quickstart", raw)
    near = lab.Fuzzy(perms=286, bands=26, ngram=5, containment=0.75)
    holdout = lab.Holdout(share=0.01, min_documents=2, min_bytes=50_000)
    corpus = lab.curate("corpus/quickstart", documents, near_duplicates=near, holdout=holdout)

    tokenizer = lab.train_tokenizer("tokenizers/quickstart", corpus["train"], vocab=config.vocab)
    tokens = lab.tokenize("tokens/quickstart", corpus["train"], tokenizer)
    heldout = lab.tokenize("tokens/quickstart-holdout", corpus["holdout"], tokenizer)

    per_step = config.batch * config.seq
    run = lab.Run(
        model=lab.Grug.sized(config.hidden, vocab=config.vocab),
        data=lab.Mix({tokens: 1.0}, alpha=0.25),
        optimizer=lab.MuonH.sized(config.hidden, per_step * config.steps, per_step),
        schedule=lab.Schedule(warmup=0.05, decay=0.95),
        batch=config.batch,
        seq=config.seq,
        steps=config.steps,
        validation=heldout,
        validation_every=max(1, config.steps // 6),
        checkpoint_every_steps=max(1, config.steps // 10),
    )
    both_cores = lab.Resources(cpu=2)
    as_long = (config.steps,) * len(config.rungs)  # rungs cut short were worse than the law allows for
    ladder = lab.ladder("ladder/quickstart", run, config.rungs, as_long).on(both_cores)
    bet = lab.file_bet("bets/quickstart", ladder, run.model, "runs/grug", run.tokens, config.seq)
    grug = lab.train("runs/grug", run).after(bet).on(both_cores)
    call = lab.call_bet("calls/quickstart", bet, grug)
    dense = lab.train("runs/dense", dense_baseline(run)).on(both_cores)

    scores = lab.evaluate("evals/quickstart", grug, heldout, corpus["holdout"], (dense,), (tokens,))
    scores.on(both_cores)
    exported = lab.export("models/quickstart", grug, tokenizer)
    prompts = (
        "The President of the United States",
        "    def __init__(self",
        "All human beings are born free",
    )
    samples = lab.sample("samples/quickstart", exported, prompts)
    return lab.report(
        "reports/quickstart",
        *(grug, dense, scores, bet, call),
        corpus=corpus,
        ladder=ladder,
        exported=exported,
        samples=samples,
        title="Quick start",
        question="What does a small mixture of experts learn from a few minutes of public text?",
    )


def dense_baseline(run: lab.Run) -> lab.Run:
    """A Llama-style model on the same text, at a quarter of the main model's training FLOPs."""
    model = lab.Dense.sized(run.model.hidden, vocab=run.model.vocab)
    steps = max(1, round(run.steps * run.flops / replace(run, model=model).flops / 4))
    optimizer = lab.MuonH.sized(model.hidden, run.tokens_per_step * steps, run.tokens_per_step)
    return replace(run, model=model, optimizer=optimizer, steps=steps)


if __name__ == "__main__":
    lab.experiment(build, version="2026.11.30")
