"""tyro over frozen dataclasses, with its boxed error messages as one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any

import tyro

from lmlab.core.errors import ConfigError

_BOX = re.compile(r"[│╭╮╰╯]")


def parse_words(
    config: Any, words: Sequence[str], program: str, default: Any = None, *, toggles: bool = False
) -> Any:
    """An instance of `config`. Raises ConfigError for an unknown flag or a wrong value.

    `toggles` makes booleans plain switches; else they are `--x` and `--no-x`.
    """
    errors = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    if toggles:
        given["config"] = (tyro.conf.FlagCreatePairsOff,)
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(config, args=list(words), prog=program, **given)
    except SystemExit as stop:
        if stop.code == 0:
            raise
        raise ConfigError(f"{_one_line(errors.getvalue())} Run `{program} --help` to see all.") from None


def _one_line(box: str) -> str:
    """The message of tyro's box, and its first suggestion."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [_BOX.sub("", row).strip() for row in plain.splitlines()[1:-1]]
    sections = [part.split("\n") for part in re.split(r"\n?─{5,}\n?", "\n".join(rows))]
    text = " ".join(sections[0]).strip().rstrip(".") + "."
    for section in sections[1:]:
        if section[0].startswith("Perhaps") and len(section) > 1:
            text += f" Perhaps you meant {section[1].split()[0]}."
    return text
