"""Serving over HTTP: tokens per second for one stream and for eight, time to the first token, and start-up.

A Grug of about 8 M parameters with random weights, then the dense model of that width, whose peer is
`transformers.generate` (greedy, float32, its own cache, all cores) where torch is importable. Ours runs as a
user gets it: `lmlab serve` with its defaults. `--json` prints one line a figure.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import jax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmlab.models.config import Dense, Grug, Model
from lmlab.models.decoder import init_params
from lmlab.models.hf import export_folder
from lmlab.serving.running import running

VOCAB, HIDDEN, NEW_TOKENS, STREAMS, RUNS = 8192, 256, 128, 8, 5
END = "<|endoftext|>"
PROMPT = [(7 * place) % 4000 + 300 for place in range(64)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    show = _print_json if parser.parse_args().json else _print_plain
    with TemporaryDirectory() as place:
        grug = _export(Grug.sized(HIDDEN, vocab=VOCAB), Path(place), "grug")
        dense = _export(Dense.sized(HIDDEN, vocab=VOCAB), Path(place), "dense")
        for figure in _measure(grug, "grug"):
            show(figure)
        for figure in _compared(_measure(dense, "dense"), dense):
            show(figure)


def _measure(folder: Path, label: str) -> list[dict[str, Any]]:
    """The figures of one model, each the median of several runs; a first run compiles and is not counted."""
    started = time.monotonic()
    with running(folder, label) as client:
        start_s = time.monotonic() - started
        with ThreadPoolExecutor(STREAMS) as pool:
            one = _median(lambda: _complete(client, 0))
            eight = _median(lambda: list(pool.map(lambda seed: _complete(client, seed), range(STREAMS))))
        first = _median(lambda: _first_token(client))
    return [
        _figure(f"serve {label}: 1 stream", NEW_TOKENS / one, "tokens/s", "higher"),
        _figure(f"serve {label}: {STREAMS} streams", STREAMS * NEW_TOKENS / eight, "tokens/s", "higher"),
        _figure(f"serve {label}: first token, {len(PROMPT)}-token prompt", 1000 * first, "ms", "lower"),
        _figure(f"serve {label}: start to first answer", start_s, "s", "lower") | {"runs": 1},
    ]


def _complete(client: httpx.Client, seed: int) -> list[int]:
    """The token ids of one greedy answer."""
    body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "seed": seed}
    answer = client.post("/v1/completions", json=body | {"return_token_ids": True}).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == NEW_TOKENS
    return answer["choices"][0]["token_ids"]


def _first_token(client: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "stream": True, "return_token_ids": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())


def _compared(figures: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The figures beside those of `transformers` on the same greedy work; as they are without torch."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        return figures
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generate(rows: int, new: int = NEW_TOKENS) -> list[int]:
        ids = torch.tensor([PROMPT] * rows)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
        )
        return made[0, len(PROMPT) :].tolist()

    with running(folder, "dense") as client:
        is_same = _complete(client, 0) == generate(1)
    seconds = {
        "1 stream": NEW_TOKENS / _median(lambda: generate(1)),
        f"{STREAMS} streams": STREAMS * NEW_TOKENS / _median(lambda: generate(STREAMS)),
        "first token": 1000 * _median(lambda: generate(1, new=1)),
    }
    return [_against(figure, seconds, is_same) for figure in figures]


def _against(figure: dict[str, Any], peer: dict[str, float], is_same: bool) -> dict[str, Any]:
    value = next((value for name, value in peer.items() if name in figure["name"]), None)
    if value is None:
        return figure
    ratio = figure["ours"] / value if figure["better"] == "higher" else value / figure["ours"]
    return figure | {"peer": value, "peer_name": "transformers", "ratio": ratio, "same_work": is_same}


def _figure(name: str, ours: float, unit: str, better: str) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peer": None,
        "peer_name": None,
        "ratio": None,
        "unit": unit,
        "better": better,
        "same_work": True,
        "runs": RUNS,
    }


def _median(work: Callable[[], object]) -> float:
    """Seconds of one run."""
    work()
    seconds = []
    for _ in range(RUNS):
        started = time.monotonic()
        work()
        seconds.append(time.monotonic() - started)
    return median(seconds)


def _export(config: Model, place: Path, name: str) -> Path:
    tokenizer = place / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    words = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<{number}>" for number in range(len(words), VOCAB)]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    made.save(str(tokenizer / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(about))
    (place / name).mkdir()
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    export_folder(config, params, tokenizer, place / name)
    return place / name


def _print_json(figure: dict[str, Any]) -> None:
    print(json.dumps(figure))


def _print_plain(figure: dict[str, Any]) -> None:
    peer = f"   {figure['peer_name']} {figure['peer']:.1f} (x{figure['ratio']:.2f})" if figure["peer"] else ""
    print(f"{figure['name']:<48} {figure['ours']:9.1f} {figure['unit']}{peer}")


if __name__ == "__main__":
    main()
