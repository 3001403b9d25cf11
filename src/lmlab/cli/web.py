"""`lmlab web`: the site of one root, until Ctrl-C."""

import json
from dataclasses import dataclass

from lmlab.storage import choose_root


@dataclass(frozen=True)
class WebFlags:
    """Browse artifacts, lineage, corpora, SQL and transfers in a web browser, until Ctrl-C."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8765
    """Port to listen on; 0 takes a free one."""
    allow_host: tuple[str, ...] = ()
    """Further names by which browsers reach it, such as that of a proxy in front."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON, an object a line."""


def web(flags: WebFlags, _fields: list[str]) -> int:
    """`lmlab web`."""
    root = choose_root(flags.root)
    from lmlab.serving.commands import listen
    from lmlab.web.supervisor import LOOPBACK, supervise

    with listen(flags.host, flags.port) as bound:
        is_local = flags.host in LOOPBACK or flags.host == "::1"
        hosts = (*LOOPBACK, *flags.allow_host) if is_local else (flags.allow_host or ("*",))
        supervise(root, bound, _say_json if flags.json else _say, hosts)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _say_json(line: str) -> None:
    print(json.dumps({"text": line}), flush=True)
