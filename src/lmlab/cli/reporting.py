"""`lmlab report egress|usage`: what crossed regions and what broke; what artifacts take. Also to a chat."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from lmlab.core.errors import ConfigError, HostError
from lmlab.reports import egress, usage
from lmlab.storage import choose_root, secrets
from lmlab.storage.budget import GIB

_POST_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Reports from recorded facts.

    - egress: what was read across regions in the last hours, and what failed or died
    - usage: bytes and hours of the artifacts, by type and by user
    """

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="egress|usage")] = "egress"
    """Which report."""
    hours: float = 24.0
    """egress: how far back."""
    threshold_gib: float = 1.0
    """egress: who read more is an offender, named with the largest reads."""
    public: bool = False
    """Tell no names, for logs that everybody reads."""
    post: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Reference to a chat's webhook (env:NAME, file:/path, gcp-secret://…); the first present counts."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON."""


def report(flags: ReportFlags, _fields: list[str]) -> int:
    """`lmlab report`."""
    if not flags.hours > 0:
        raise ConfigError(f"--hours {flags.hours:g} is no time to look back on. Give a positive number.")
    hook = secrets.resolve(flags.post, "--post") if flags.post else None
    root, threshold = choose_root(flags.root), int(flags.threshold_gib * GIB)
    if flags.what == "egress":
        facts = egress.egress(root, time.time(), flags.hours, threshold, public=flags.public)
        text = egress.lines(facts)
    elif flags.what == "usage":
        facts = usage.usage(root, public=flags.public)
        text = usage.lines(facts)
    else:
        raise ConfigError(f"lmlab has no report {flags.what!r}. It has: egress, usage.")
    if hook is not None:
        _post(hook, "\n".join(text))
    print(json.dumps(asdict(facts), indent=1) if flags.json else "\n".join(text))
    return 0


def _post(hook: secrets.Secret, text: str) -> None:
    """Send the text to a chat. The address is a secret, so no error shows it."""
    import httpx

    try:
        status = httpx.post(hook.reveal(), json={"text": text}, timeout=_POST_LIMIT_S).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        status = type(error).__name__
    if status not in range(200, 300):
        raise HostError(f"The report could not be posted to {hook!r} ({status}). Check the webhook.")
