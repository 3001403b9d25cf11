"""The torch side of bench/models.py: transformers' own Llama, read from our export; a round per line."""

import json
import resource
import sys
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Answer each line {"batch", "dtype", "threads"} with the seconds of loss and gradient, and the loss."""
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
    tokens = torch.tensor(np.load(sys.argv[2]).astype(np.int64))
    for line in sys.stdin:
        asked = json.loads(line)
        torch.set_num_threads(asked["threads"])
        used, started = cpu_seconds(), time.perf_counter()
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=asked["dtype"] == "bfloat16"):
            scores = model(tokens[: asked["batch"], :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            scores.float().flatten(0, 1), tokens[: asked["batch"], 1:].flatten()
        )
        loss.backward()
        answer = {"cpu": cpu_seconds() - used, "wall": time.perf_counter() - started, "loss": loss.item()}
        print(json.dumps(answer), flush=True)


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
