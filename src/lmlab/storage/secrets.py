"""Secrets by reference: `env:NAME`, `file:/path`, `gcp-secret://projects/P/secrets/S/versions/N`.

Of an ordered list the first reference that is present counts. One that is present but can't be read is an
error: falling through to a weaker source would use a credential that nobody meant. A value is shown nowhere.
"""

import base64
import pathlib
import re
from collections.abc import Sequence

from lmlab.core import environ
from lmlab.core.errors import ConfigError, HostError

_CLOUD = re.compile(r"gcp-secret://(projects/[^/]+/secrets/[^/]+/versions/\d+)$")
_FORMS = "env:NAME, file:/path or gcp-secret://projects/P/secrets/S/versions/N"
_IDENTITY = "/computeMetadata/v1/instance/service-accounts/default/token"
MANAGER = "https://secretmanager.googleapis.com"


class Secret:
    """A value that only `reveal` shows."""

    __slots__ = ("_reference", "_value")

    def __init__(self, value: str, reference: str) -> None:
        self._value, self._reference = value, reference

    def reveal(self) -> str:
        """The value, for the one call that needs it."""
        return self._value

    def line(self) -> str:
        """The value for a header. Raises HostError if none can hold it: clients would print it, or panic."""
        if not (self._value.isascii() and self._value.isprintable()):
            raise HostError(
                f"{self!r} is no key or token: it has a line break or an odd character. Correct it."
            )
        return self._value

    def __repr__(self) -> str:
        return f"<secret from {self._reference}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise ConfigError(f"{self!r} must not be written or sent anywhere. Send its reference instead.")


def check(references: object, what: str) -> None:
    """Refuse what is no list of references; the message never repeats a value, it could be a secret."""
    if not isinstance(references, list | tuple) or not references:
        raise ConfigError(f"{what} must be a list of references: {_FORMS}. Correct it.")
    for number, reference in enumerate(references):
        text = reference if isinstance(reference, str) else ""
        if text.startswith("gcp-secret://"):
            if not _CLOUD.match(text):
                raise ConfigError(
                    f"{what}[{number}] names no version, so its value could change unseen. "
                    "Write gcp-secret://projects/P/secrets/S/versions/N with a number."
                )
        elif not re.match(r"env:[A-Za-z_][A-Za-z0-9_]*$|file:/.", text):
            raise ConfigError(
                f"{what}[{number}] is no reference (its text is not shown, it could be a secret), and "
                f"secrets don't belong into files of settings. Write {_FORMS}."
            )


def resolve(references: Sequence[str], what: str) -> Secret:
    """The first secret that is present. Raises ConfigError if none is, HostError if one can't be read."""
    check(references, what)
    for reference in references:
        value = _read(reference, what)
        if value is not None:
            return Secret(value, reference)
    raise ConfigError(f"{what}: none of {', '.join(references)} is there. Set one of them.")


def _read(reference: str, what: str) -> str | None:
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = environ.get(name)
    elif kind == "file":
        value = _read_file(pathlib.Path(name), what)
    else:
        value = _ask_manager(name.removeprefix("//"), what)
    if value is not None and not value.strip():
        raise HostError(
            f"{what}: {reference} is empty, and nothing weaker is used instead. Fill or remove it."
        )
    return value and value.strip()


def _read_file(path: pathlib.Path, what: str) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
    # Raised outside of the handler: the text of a decoding error holds a part of the value.
    raise HostError(
        f"{what}: file:{path} is there but can't be read ({reason}), and nothing weaker is used instead. "
        "Correct or remove it."
    )


def _ask_manager(name: str, what: str) -> str | None:
    """The payload of one version of a secret, by the identity that the metadata server vouches for."""
    import httpx

    from lmlab.storage.lab import lab

    here = lab()
    backend = here.backend("gcp-secret", "")
    manager = (backend and backend.endpoint) or MANAGER
    metadata = f"http://{environ.get('GCE_METADATA_HOST') or 'metadata.google.internal'}{_IDENTITY}"
    reason = ""
    try:
        with httpx.Client(timeout=min(here.limits.read_s, 10.0)) as client:
            identity = client.get(metadata, headers={"Metadata-Flavor": "Google"}).raise_for_status().json()
            headers = {"Authorization": f"Bearer {identity['access_token']}"}
            answer = client.get(f"{manager}/v1/{name}:access", headers=headers)
            if answer.status_code == 404:
                return None
            return base64.b64decode(answer.raise_for_status().json()["payload"]["data"]).decode()
    except httpx.HTTPStatusError as error:
        reason = f"{error.request.url.host} answers {error.response.status_code}"
    except (httpx.HTTPError, KeyError, ValueError) as error:
        reason = type(error).__name__
    # Raised outside of the handler, as above.
    raise HostError(
        f"{what}: gcp-secret://{name} can't be read ({reason}), and nothing weaker is used instead. Give "
        "this machine's identity the right to read it, or put another reference first."
    )
