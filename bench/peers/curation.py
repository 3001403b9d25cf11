"""The datatrove side of the pipeline figure: exact and MinHash deduplication, then token files.

Run by bench/parts/pipeline.py with the interpreter that has datatrove; it imports nothing of lmlab. The
settings are those found fastest: two processes, one task a shard, 32-bit xxhash signatures.
"""

import json
import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig

WORKERS, BANDS, ROWS, WORDS = 2, 26, 11, 5


def main() -> None:
    """Arguments: a folder of jsonl shards, a tokenizer.json, a work folder; prints what came out as JSON."""
    source, tokenizer, work = sys.argv[1:4]
    shards = len(list(Path(source).iterdir()))
    exact = ExactDedupConfig(
        content_getter=lambda document: document.text, hash_config=HashConfig(precision=64, hash_fc="xxhash")
    )
    near = MinhashConfig(
        n_grams=WORDS,
        num_buckets=BANDS,
        hashes_per_bucket=ROWS,
        hash_config=HashConfig(precision=32, hash_fc="xxhash"),
    )
    stages = {
        "exact-sign": ([JsonlReader(source), ExactDedupSignature(f"{work}/es", exact, WORKERS)], shards),
        "exact-find": ([ExactFindDedups(f"{work}/es", f"{work}/ed", config=exact)], WORKERS),
        "exact-filter": (
            [
                JsonlReader(source),
                ExactDedupFilter(f"{work}/ed", config=exact),
                JsonlWriter(f"{work}/unique", compression="zstd"),
            ],
            shards,
        ),
        "near-sign": ([JsonlReader(f"{work}/unique"), MinhashDedupSignature(f"{work}/ns", near)], shards),
        "near-buckets": ([MinhashDedupBuckets(f"{work}/ns", f"{work}/nb", config=near)], BANDS),
        "near-cluster": ([MinhashDedupCluster(f"{work}/nb", f"{work}/nc", config=near)], 1),
        "tokens": (
            [
                JsonlReader(f"{work}/unique"),
                MinhashDedupFilter(f"{work}/nc"),
                DocumentTokenizer(
                    f"{work}/tokens", tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
                ),
            ],
            shards,
        ),
    }
    seconds = {}
    for name, (steps, tasks) in stages.items():
        started = time.perf_counter()
        LocalPipelineExecutor(
            steps, tasks=tasks, workers=min(WORKERS, tasks), start_method="fork", logging_dir=f"{work}/{name}"
        ).run()
        seconds[name] = round(time.perf_counter() - started, 2)
    stats = json.loads(Path(work, "tokens", "stats.json").read_text())
    print(json.dumps({"seconds": seconds, **written(Path(work) / "tokens"), "stats": len(stats)}))


def written(folder: Path) -> dict[str, int]:
    """Documents and tokens in the token files: an index holds 8 bytes a document, a token takes 2."""
    documents = sum(file.stat().st_size // 8 for file in folder.glob("*.ds.index"))
    return {"documents": documents, "tokens": sum(file.stat().st_size // 2 for file in folder.glob("*.ds"))}


if __name__ == "__main__":
    main()
