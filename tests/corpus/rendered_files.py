"""Small files of every format, and what they become, in a form that a person can review."""

import json
import re
from pathlib import Path as LocalPath

from lmlab.corpus import Slice
from lmlab.corpus.reading import read, render
from lmlab.storage import Path

GOLDENS = LocalPath(__file__).parent / "goldens"


def inputs() -> list[LocalPath]:
    """The files to render; what their names begin with is the renderer."""
    return sorted(path for path in GOLDENS.iterdir() if path.is_file())


def renderer_of(path: LocalPath) -> str:
    """Which renderer a file is for: what stands before the first dot or dash of its name."""
    return re.split("[.-]", path.name)[0]


def golden(path: LocalPath) -> str:
    """All documents of a file: a line with everything but the text, then the text."""
    shown = []
    for record in read(Path(path), (Slice("domain", ("*",), renderer_of(path)),)):
        for document in render(record):
            about = json.dumps(
                [record.name, document.part, document.language, dict(document.meta)], sort_keys=True
            )
            shown.append(f"##### {about} {document.reason}".rstrip() + f"\n{document.text}")
    return "\n".join(shown)
