"""The data engine, curation and tokenizing: B1 to B6 of the spec, and the whole pipeline, beside their peers.

Each figure comes from a file in bench/parts, which says what is measured and against whom. Peers run in the
interpreters that LMLAB_PEER_DATA and LMLAB_PEER_MARIN name (`peers.sh data` and `marin` print them). Name
figures to run only those; `--json` prints one line a figure.
"""

import argparse
import json
from importlib import import_module
from typing import Any

PARTS = {
    "engine": ("B1", "B2"),
    "minhash": ("B3", "B4"),
    "encoding": ("B5",),
    "html": ("B6",),
    "pipeline": ("extract", "pipeline"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", help="B1 … B6, pipeline; all if none is named")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    flags = parser.parse_args()
    for part, names in PARTS.items():
        if not flags.figures or set(names) & set(flags.figures):
            for figure in import_module(f"parts.{part}").figures():
                print(json.dumps(figure) if flags.json else _plain(figure), flush=True)


def _plain(figure: dict[str, Any]) -> str:
    peer = (
        f"{figure['peer_name']} {figure['peer']:.2f}, ratio {figure['ratio']:.2f}" if figure["peer"] else ""
    )
    known = ("name", "ours", "peer", "peer_name", "ratio", "unit", "better", "runs")
    rest = ", ".join(f"{key} {_short(value)}" for key, value in figure.items() if key not in known)
    return f"{figure['name']:<10} {figure['ours']:9.2f} {figure['unit']:<9} {peer}   ({rest})"


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
