"""`pipeline`: the Debian corpus of 26 packages from documents to tokens, ours beside datatrove.

Both sides drop exact repeats, find near duplicates by 286 hashes in 26 bands, and write the token ids of what
is left, with the same tokenizer and two processes. Ours also tells languages, holds text out, decontaminates
and keeps what it drops; that is its default. Datatrove compares runs of five words and never checks what its
bands propose; documents and tokens of both must agree within a tenth. The packages are
fetched with apt (or lie in LMLAB_BENCH_DEBIAN); rendering them is a figure of its own, without a peer.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from parts.measuring import Measured, measure

from lmlab.artifacts import Out
from lmlab.core import environ
from lmlab.corpus import Corpus, Documents, Files, Raw, Slice, curate, extract, fetch
from lmlab.corpus.schema import parts_of
from lmlab.dataflow import read_jsonl, read_parquet, write_jsonl
from lmlab.storage import Path as StoragePath, read_json
from lmlab.tokens import Tokenizer, TokenStore, tokenize, train_tokenizer

RUNS, VOCAB = 3, 32_768
PACKAGES = (
    "python3.11-doc", "manpages", "manpages-dev", "manpages-de", "manpages-fr", "manpages-es",
    "manpages-ja", "manpages-ru", "manpages-zh", "manpages-pl", "debian-reference-en",
    "debian-reference-de", "debian-reference-es", "debian-reference-fr", "debian-reference-it",
    "debian-reference-ja", "debian-reference-pt", "debian-reference-zh-cn", "debian-handbook",
    "installation-guide-amd64", "anarchism", "fortunes", "wordnet-base", "dict-gcide", "dict-foldoc",
)  # fmt: skip
SLICES = (
    Slice("python", ("*/_sources/*.rst.txt",), language="en"),
    Slice("manuals", ("*/man/man*/*.gz", "*/man/*/man*/*.gz"), "man"),
    Slice("reference", ("*/debian-reference*/*.txt.gz", "*/installation-guide-amd64/*.txt.gz")),
    Slice("handbook", ("*/debian-handbook/*.html",), "html"),
    Slice("prose", ("*/anarchism/*.html", "*/anarchism/*.md"), "html", language="en"),
    Slice("lexicon", ("*.dict.dz",), "dictionary", language="en"),
    Slice("wordnet", ("*/wordnet/data.*",), language="en"),
)


def figures() -> Iterator[dict[str, Any]]:
    """Rendering, then the pipeline."""
    with TemporaryDirectory() as folder:
        work = StoragePath(folder)
        source = Files("debian", str(_packages()), "GPL, PSF, WordNet and others", SLICES, ("*.deb",))
        raw = fetch.body(Out.at(work / "raw"), (source,))
        made: list[Documents] = []

        def render() -> None:
            (work / "documents").remove_tree()
            result = extract.body(Out.at(work / "documents"), Raw.at(work / "raw", **vars(raw)))
            made[:] = [Documents.at(work / "documents", **result.result)]

        rendering = measure(render)
        documents = made[0]
        yield _figure("extract", documents.size_bytes / 1e6 / rendering.cpu_s, None, 1) | {
            "documents": documents.documents,
            "megabytes": documents.size_bytes / 1e6,
            "peak_mb": rendering.peak_mb,
        }
        yield _pipeline(documents, work, Path(folder))


def _packages() -> Path:
    """The folder of the packages; fetched into the cache unless they are there."""
    given = environ.get("LMLAB_BENCH_DEBIAN")
    folder = Path(given) if given else environ.cache_dir() / "bench-debian"
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob("*.deb")):
        subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, check=True, timeout=600)
    return folder


def _pipeline(documents: Documents, work: StoragePath, local: Path) -> dict[str, Any]:
    trained = train_tokenizer.body(Out.at(work / "tokenizer"), documents, VOCAB)
    ours, stores = _ours(documents, Tokenizer.at(work / "tokenizer", **trained.result), work)
    megabytes = documents.size_bytes / 1e6
    speed = megabytes / median(run.cpu_s for run in ours)
    counts = {
        stage["stage"]: stage["documents_out"] for stage in read_json(work / "corpus/stages.json")["stages"]
    }
    facts = {
        "megabytes": megabytes,
        "peak_mb": max(run.peak_mb for run in ours),
        "unique": counts["exact"],
        "documents": sum(store.documents for store in stores),
        "tokens": sum(store.tokens for store in stores),
    }
    python = environ.get("LMLAB_PEER_DATA")
    if python is None:
        return _figure("pipeline", speed, None, RUNS) | facts
    for number, part in enumerate(parts_of(documents.path)):
        texts = read_parquet(part, ["id", "text"]).to_pylist()
        write_jsonl(work / "jsonl" / f"{number:05d}.jsonl.zst", texts)
    script = Path(__file__).parents[1] / "peers" / "curation.py"
    words = [python, str(script), str(local / "jsonl"), str(local / "tokenizer" / "tokenizer.json")]
    peer = [measure([*words, str(local / f"peer-{number}")]) for number in range(RUNS)]
    told = json.loads(peer[-1].result.strip().splitlines()[-1])
    unique = sum(1 for path in (work / f"peer-{RUNS - 1}" / "unique").list() for _ in read_jsonl(path))
    # Ours cuts long gaps first, which makes a few more texts equal, and checks what the bands propose.
    pairs = (
        (unique, facts["unique"]),
        (told["documents"], facts["documents"]),
        (told["tokens"], facts["tokens"]),
    )
    return _figure("pipeline", speed, megabytes / median(run.cpu_s for run in peer), RUNS) | {
        **facts,
        "peer_unique": unique,
        "peer_documents": told["documents"],
        "peer_tokens": told["tokens"],
        "peer_peak_mb": max(run.peak_mb for run in peer),
        "same_work": all(
            abs(a / b - 1) < limit for (a, b), limit in zip(pairs, (0.01, 0.1, 0.1), strict=True)
        ),
    }


def _ours(
    documents: Documents, tokenizer: Tokenizer, work: StoragePath
) -> tuple[list[Measured], list[TokenStore]]:
    made: list[TokenStore] = []

    def run() -> None:
        (work / "corpus").remove_tree()
        (work / "tokens").remove_tree()
        corpus = Corpus.at(work / "corpus", **curate.body(Out.at(work / "corpus"), documents).result)
        sides = ("train", "holdout")
        made[:] = [tokenize.body(Out.at(work / "tokens" / side), corpus[side], tokenizer) for side in sides]

    run()  # compiles the kernels
    return [measure(run) for _ in range(RUNS)], made


def _figure(name: str, ours: float, peer: float | None, runs: int) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        "peer_name": "datatrove" if peer else None,
        "ratio": ours / peer if peer else None,
        "unit": "MB/CPU-s",
        "better": "higher",
        "same_work": None,
        "runs": runs,
    }
