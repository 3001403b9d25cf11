"""`lmlab VERB …`: finds the verb, prints errors as one line, and turns them into exit codes.

The table is all that `--help` needs, so it answers without loading anything; a verb's module and its parser
are loaded when it is called.
"""

import os
import sys
import typing
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from lmlab.core import environ
from lmlab.core.errors import ConfigError, LmlabError

VERBS: dict[str, tuple[str, str]] = {
    "run": ("running", "build what an experiment describes: run EXP.py [flags] [-- --field VALUE]"),
    "plan": ("running", "say what a run would build and why, and touch nothing"),
    "ls": ("stored", "list artifacts and their states"),
    "show": ("stored", "one artifact: result, recipe, inputs, code, files, or why it failed"),
    "lineage": ("stored", "what an artifact was made from, and what was made of it"),
    "query": ("querying", "SQL over the catalog and over artifacts' files"),
    "diff": ("stored", "how two artifacts differ, field by field"),
    "verify": ("stored", "hash an artifact's files again and name what changed"),
    "tokens": ("tokens", "text to tokens: tokens build|train|import|inspect|estimate|compare|… PATH"),
    "fs": ("files", "list, read, copy, sync and check files wherever they lie: fs ls|cat|cp|sync|… PATH"),
    "gc": ("files", "remove expired scratch and what killed writers left"),
    "report": ("reporting", "what crossed regions and what failed, or what takes space: report egress|usage"),
    "corpus": (
        "corpus",
        "look at, clean and sort a folder of text: corpus inspect|stats|dedup|clean|… FOLDER",
    ),
    "serve": ("serving", "serve an exported model over an OpenAI-compatible HTTP endpoint"),
    "web": ("web", "browse artifacts, lineage, corpora, SQL and transfers in a web browser"),
    "chat": ("serving", "talk to an exported model in the terminal"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code: 0 ok, 1 failed, 2 usage, 3 environment, 130 stopped."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except LmlabError as error:
        if environ.get("LMLAB_TRACEBACK"):
            raise
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    verb, *rest = words
    if verb not in VERBS:
        raise ConfigError(f"lmlab has no verb {verb!r}. It has: {', '.join(VERBS)}. Try lmlab --help.")
    function: Callable[[Any, list[str]], int] = getattr(import_module(f"lmlab.cli.{VERBS[verb][0]}"), verb)
    own, fields = _split(rest)
    flags = next(iter(typing.get_type_hints(function, include_extras=True).values()))
    from lmlab.cli.parsing import parse_words

    return function(parse_words(flags, own, f"lmlab {verb}", toggles=True), fields)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """A verb's own flags, and what follows `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _help() -> str:
    lines = ["usage: lmlab VERB [flags]", ""]
    lines += [f"  {verb:<9} {text}" for verb, (_, text) in VERBS.items()]
    lines += ["", "lmlab VERB --help explains a verb's flags. Every verb takes --root and --json."]
    return "\n".join(lines)


def entry() -> None:
    """For `python -m lmlab.cli.main`."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
