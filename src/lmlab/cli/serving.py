"""`lmlab serve` and `lmlab chat`: a model's folder or address, handed to the serving package."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import Annotated

import tyro

from lmlab.artifacts import Artifact, history, records
from lmlab.core.errors import ConfigError
from lmlab.storage import choose_root


@dataclass(frozen=True)
class ServeFlags:
    """Serve an exported model over an OpenAI-compatible HTTP endpoint, until Ctrl-C."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """NAME@VERSION of an exported model, NAME for its newest version, or a model's folder."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    slots: int = 8
    """Requests answered at the same time."""
    name: str | None = None
    """The model's name in the API; by default its folder's or artifact's."""
    root: str | None = None
    """Where artifacts live."""
    json: bool = False
    """Print JSON, an object a line."""


@dataclass(frozen=True)
class ChatFlags:
    """Talk to an exported model in the terminal."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """NAME@VERSION of an exported model, NAME for its newest version, or a model's folder."""
    prompt: str | None = None
    """Answer this and end."""
    max_tokens: int = 128
    """Longest answer, in tokens."""
    temperature: float = 0.8
    """0 always takes the likeliest token."""
    top_p: float = 0.95
    """Only the likeliest tokens that together have this probability."""
    seed: int = 0
    """The same seed gives the same answers."""
    root: str | None = None
    """Where artifacts live."""
    json: bool = False
    """Print JSON, an object a line."""


def serve(flags: ServeFlags, _fields: list[str]) -> int:
    """`lmlab serve`."""
    folder, name = _model(flags.model, flags.root)
    from lmlab.serving import commands

    commands.serve(
        folder,
        say=_say_json if flags.json else _say,
        name=flags.name or name,
        host=flags.host,
        port=flags.port,
        slots=flags.slots,
    )
    return 0


def chat(flags: ChatFlags, _fields: list[str]) -> int:
    """`lmlab chat`."""
    folder, _ = _model(flags.model, flags.root)
    from lmlab.serving import commands

    commands.chat(
        folder,
        say=_say_json if flags.json else _say,
        ask=input,
        write=None if flags.json else _write,
        prompt=flags.prompt,
        max_tokens=flags.max_tokens,
        temperature=flags.temperature,
        top_p=flags.top_p,
        seed=flags.seed,
    )
    return 0


def _model(given: str, root: str | None) -> tuple[LocalPath, str]:
    """The folder of a model and its name, from an address, a name or a folder."""
    if "@" not in given and LocalPath(given).is_dir():
        return LocalPath(given), LocalPath(given).resolve().name
    found = history.entry(choose_root(root), given)
    if found.record is None:
        raise ConfigError(f"{found.address} is not built ({found.state}), so there is no model to load.")
    from lmlab.artifacts.staging import bring

    return bring(records.open_artifact(found.record, Artifact, found.folder)).path.local, found.name


def _say(line: str) -> None:
    print(line, flush=True)


def _say_json(line: str) -> None:
    print(json.dumps({"text": line}), flush=True)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
