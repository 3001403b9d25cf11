"""Small files of every format, and what they become, in a form that a person can review."""

import json
from pathlib import Path as LocalPath

from lmlab.corpus import Slice
from lmlab.corpus.reading import read, render
from lmlab.storage import Path

GOLDENS = LocalPath(__file__).parent / "goldens"
RENDERER_OF = {"mdoc": "man"}


def inputs() -> list[LocalPath]:
    """The files to render; what their names begin with is the renderer."""
    return sorted(path for path in GOLDENS.iterdir() if path.is_file())


def renderer_of(path: LocalPath) -> str:
    """Which renderer a file is for."""
    stem = path.name.partition(".")[0]
    return RENDERER_OF.get(stem, stem)


def golden(path: LocalPath) -> str:
    """All documents of a file: a line with everything but the text, then the text."""
    shown = []
    for record in read(Path(path), (Slice("domain", ("*",), renderer_of(path)),)):
        for document in render(record):
            about = json.dumps([record.name, document.part, document.language, dict(document.meta)])
            shown.append(f"##### {about} {document.reason}".rstrip() + f"\n{document.text}")
    return "\n".join(shown)
