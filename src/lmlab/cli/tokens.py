"""`lmlab tokens …`: a person's own folder to a token store, and what tokenizers and stores hold.

Every subverb is a function from the flags to an answer: a JSON value, the lines for people.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

import tyro

from lmlab.cli.table import table
from lmlab.core.errors import ConfigError
from lmlab.core.units import format_bytes
from lmlab.storage import Path, choose_root


@dataclass(frozen=True, kw_only=True)
class TokensFlags:
    """Text to tokens, and what is in them. Documents are a corpus, or .parquet, .jsonl and .txt files.

    - build DOCUMENTS… --tokenizer T --out DIR [--workers 2], train DOCUMENTS --out DIR [--vocab 8192]
    - inspect STORE|TOKENIZER [--verify], decode STORE [--domain D] [--lines 1], card STORE
    - count DOCUMENTS… --tokenizer T (exactly), estimate DOCUMENTS… --tokenizer T (from a sample)
    - compare DOCUMENTS… --tokenizer T1,T2 (bytes per token)

    A tokenizer is a folder with a tokenizer.json, a .json, .tiktoken or .gguf file, or NAME@VERSION.
    """

    subverb: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUBVERB")] = ""
    """One of those above."""
    paths: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH")] = ()
    """What it works on."""
    tokenizer: str = ""
    """The tokenizer, or several with commas between; decode: by default the one that made the store."""
    out: str = ""
    """build, train: the folder to write."""
    vocab: int = 8192
    """train: number of ids."""
    workers: int = 2
    """build: processes."""
    domain: str = ""
    """decode: only this domain."""
    lines: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """decode: documents of each domain."""
    verify: bool = False
    """inspect: hash every file of a store."""
    root: str | None = None
    """The lab's root, for NAME@VERSION; otherwise LMLAB_ROOT or lmlab.toml."""
    json: bool = False
    """Print JSON."""


Answer = tuple[Any, Sequence[str]]


def tokens(flags: TokensFlags, _fields: list[str]) -> int:
    """`lmlab tokens`."""
    if flags.subverb not in SUBVERBS:
        raise ConfigError(f"lmlab tokens has no subverb {flags.subverb!r}. It has: {', '.join(SUBVERBS)}.")
    function, *needs = SUBVERBS[flags.subverb]
    if missing := [name for name in ("paths", *needs) if not getattr(flags, name)]:
        what = "a PATH" if missing[0] == "paths" else f"--{missing[0]}"
        raise ConfigError(f"lmlab tokens {flags.subverb} needs {what}. See lmlab tokens --help.")
    if flags.root:
        choose_root(flags.root)
    value, lines = function(flags)
    print(json.dumps(value, indent=1, ensure_ascii=False) if flags.json else "\n".join(lines))
    return 0


def _build(flags: TokensFlags) -> Answer:
    from lmlab.dataflow.runner import open_runner
    from lmlab.tokens.write import encoding_with, write_store

    out, encoding = _new(flags.out), encoding_with(_place(flags.tokenizer), flags.tokenizer)
    with open_runner(flags.workers) as runner:
        write_store(out, _files(flags), encoding, runner, lambda *_: None)
    return _inspected(out, verify=False)


def _train(flags: TokensFlags) -> Answer:
    from lmlab.tokens.tokenizer import TRAINED, Loaded, save_tokenizer
    from lmlab.tokens.train import balanced_sample, train_bpe

    out, sample = _new(flags.out), balanced_sample(_place(flags.paths[0]), 16_000_000, 0.3)
    save_tokenizer(Loaded(train_bpe(sample, flags.vocab), TRAINED), out)
    return _inspected(out, verify=False)


def _inspect(flags: TokensFlags) -> Answer:
    return _inspected(_place(flags.paths[0]), verify=flags.verify)


def _inspected(place: Path, *, verify: bool) -> Answer:
    from lmlab.tokens.fast import encoder_of
    from lmlab.tokens.store import open_store, verify as check
    from lmlab.tokens.tokenizer import facts, load_all

    if place.is_dir() and (place / "ledger.json").exists():
        store = open_store(place)
        if verify:
            check(place, store.ledger.shards)
        totals = store.ledger.totals().values()
        rows = [[r.domain, r.documents, r.tokens, format_bytes(r.bytes), f"{r.ratio:.3f}"] for r in totals]
        found = {name: getattr(store.ledger.head, name) for name in ("tokenizer", "vocab", "eos_id")}
        found |= {"shards": len(store.ledger.shards), "encoded by": store.ledger.encoders()}
        lines = table(rows, ("domain", "documents", "tokens", "text", "bytes per token"))
        domains = [
            {"domain": r.domain, "documents": r.documents, "tokens": r.tokens, "bytes": r.bytes}
            for r in totals
        ]
        return found | {"domains": domains}, [*lines, *table([[*pair] for pair in found.items()])]
    loaded = load_all(place)
    encoder = encoder_of(loaded.tokenizer)
    found = facts(loaded) | {"encoder": encoder.name, "why": encoder.why}
    return found, table([[name, value] for name, value in found.items() if value not in ("", None, [])])


def _decode(flags: TokensFlags) -> Answer:
    from lmlab.tokens.store import open_store
    from lmlab.tokens.tokenizer import load_tokenizer

    store = open_store(_place(flags.paths[0]))
    tokenizer = load_tokenizer(_place(flags.tokenizer or store.ledger.head.tokenizer))
    texts: dict[str, list[str]] = {}
    for source in map(store.source, [flags.domain] if flags.domain else store.domains):
        spans = pairwise(source.offsets[: flags.lines + 1].tolist())
        ids = [source.tokens[start : end - 1].tolist() for start, end in spans]
        texts[source.domain] = tokenizer.decode_batch(ids, skip_special_tokens=False)
    return texts, [f"--- {domain}\n{text}" for domain, found in texts.items() for text in found]


def _card(flags: TokensFlags) -> Answer:
    from lmlab.tokens.card import card
    from lmlab.tokens.store import open_store

    place = _place(flags.paths[0])
    text = card(open_store(place).ledger, place.name)
    return {"card": text}, [text]


def _estimate(flags: TokensFlags) -> Answer:
    """count, estimate: of one tokenizer; compare: of several."""
    from lmlab.tokens.estimate import count_tokens, estimate, sample_windows
    from lmlab.tokens.fast import encoder_of
    from lmlab.tokens.tokenizer import load_tokenizer

    names = flags.tokenizer.split(",") if flags.subverb == "compare" else [flags.tokenizer]
    encoders = {name: encoder_of(load_tokenizer(_place(name))) for name in names}
    if flags.subverb == "count":
        found = {name: count_tokens(encoder, _files(flags)) for name, encoder in encoders.items()}
    else:
        samples = sample_windows(_files(flags))
        found = {n: [estimate(e, domain, s) for domain, s in samples.items()] for n, e in encoders.items()}
    value = {name: [asdict(one) for one in rows] for name, rows in found.items()}
    first = found[names[0]]
    if flags.subverb == "compare":
        rows = [
            [one.domain, *(f"{r[i].bytes_per_token:.3f}" for r in found.values())]
            for i, one in enumerate(first)
        ]
        return value, table(rows, ("bytes per token", *names))
    rows = []
    for one in first:
        row = [one.domain, one.documents, format_bytes(one.size_bytes), one.tokens]
        rows.append([*row, f"{one.bytes_per_token:.3f} ± {one.error:.3f}", one.windows or "all"])
    lines = table(rows, ("domain", "documents", "text", "tokens", "bytes per token", "windows"))
    return value[names[0]], [
        *lines,
        f"{sum(one.tokens for one in first):,} tokens, end-of-document ids included",
    ]


def _files(flags: TokensFlags) -> Any:
    from lmlab.tokens.documents import document_files

    return document_files(*map(_place, flags.paths))


def _place(text: str) -> Path:
    """A path, or an artifact below the root."""
    name, at, version = text.rpartition("@")
    place = choose_root() / f"{name}/{version}" if at and not Path(text).exists() else Path(text)
    if not place.exists():
        raise ConfigError(f"{text} does not exist, neither as a path nor as an artifact. Check the name.")
    return place


def _new(text: str) -> Path:
    if (place := Path(text)).exists():
        raise ConfigError(f"{place} exists already, and nothing is written over. Give another --out.")
    return place


SUBVERBS: dict[str, tuple[Any, ...]] = {
    "build": (_build, "tokenizer", "out"),
    "train": (_train, "out"),
    "inspect": (_inspect,),
    "decode": (_decode,),
    "card": (_card,),
    "count": (_estimate, "tokenizer"),
    "estimate": (_estimate, "tokenizer"),
    "compare": (_estimate, "tokenizer"),
}
"""The function of each, and which flags it needs beside a path."""
