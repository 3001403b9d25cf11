"""Tokenizing: megabytes of text per CPU-second, ours against `tokenizers.encode_batch_fast` (B5 of the spec).

The text is this interpreter's standard library (8 MB of real files); the tokenizer is a byte-level BPE of
32,768 ids trained on it. All sides use one thread and must give the same ids. kitoken is a second peer where
it is installed. `--json` prints one line a figure.
"""

import argparse
import json
import sysconfig
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import tokenizers

from lmlab.core import environ
from lmlab.tokens.encode import encode_documents, encoder_of, library_encoder
from lmlab.tokens.fast import FastEncoder
from lmlab.tokens.train import train_bpe

SIZE_BYTES, VOCAB, RUNS = 8_000_000, 32_768, 5
Encode = Callable[[], list[np.ndarray]]


def main() -> None:
    """Measure, check that all did the same work, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    environ.put("TOKENIZERS_PARALLELISM", "false")  # the peer in one thread, as ours
    texts = standard_library()
    tokenizer = train_bpe((text.decode() for text in texts), VOCAB)
    tokenizer.encode_special_tokens = True
    assert FastEncoder.fits(tokenizer)
    fast, library = encoder_of(tokenizer), library_encoder(tokenizer)
    sides: dict[str, Encode] = {
        "ours": lambda: list(encode_documents(fast, texts)),
        "encode_batch_fast": lambda: list(encode_documents(library, texts)),
    }
    if kitoken := kitoken_of(tokenizer, texts):
        sides["kitoken"] = kitoken
    fast([b"compile"])
    ids = {name: encode() for name, encode in sides.items()}
    speeds = {name: speed(encode, sum(map(len, texts))) for name, encode in sides.items()}
    for peer in ("encode_batch_fast", "kitoken"):
        same = peer in ids and all(map(np.array_equal, ids["ours"], ids[peer]))
        show("B5", speeds["ours"], speeds.get(peer), peer, same, as_json)


def standard_library() -> list[bytes]:
    """Python files of the running interpreter in the order of their names, up to SIZE_BYTES."""
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        data = path.read_bytes().decode(errors="ignore").encode()
        if "site-packages" not in path.parts and size + len(data) <= SIZE_BYTES:
            texts.append(data)
            size += len(data)
    return texts


def kitoken_of(tokenizer: tokenizers.Tokenizer, texts: Sequence[bytes]) -> Encode | None:
    """The same work by kitoken; None where it is not installed."""
    if find_spec("kitoken") is None:
        return None
    encoder = import_module("kitoken").Kitoken.from_tokenizers(tokenizer.to_str().encode())
    decoded = [text.decode() for text in texts]
    return lambda: [np.array(encoder.encode(text), np.uint32) for text in decoded]


def speed(encode: Encode, size_bytes: int) -> float:
    """Megabytes per CPU-second, the median of RUNS."""
    seconds = []
    for _ in range(RUNS):
        started = time.process_time()
        encode()
        seconds.append(time.process_time() - started)
    return size_bytes / 1e6 / median(seconds)


def show(name: str, ours: float, peer: float | None, peer_name: str, same_work: bool, as_json: bool) -> None:
    """One line for a person or a program."""
    figure = {
        "name": name,
        "ours": round(ours, 2),
        "peer": None if peer is None else round(peer, 2),
        "peer_name": peer_name,
        "ratio": None if peer is None else round(ours / peer, 2),
        "unit": "MB/CPU-s",
        "better": "higher",
        "same_work": same_work,
        "runs": RUNS,
    }
    print(json.dumps(figure) if as_json else " ".join(f"{key}={value}" for key, value in figure.items()))


if __name__ == "__main__":
    main()
