"""Which root a command works on, and whether its store keeps the one promise claims need."""

import pathlib
import secrets
import tomllib

from lmlab.core import environ
from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage.paths import Path

FILE = "lmlab.toml"


def choose_root(flag: str | None = None, start: pathlib.Path | None = None) -> Path:
    """`--root`, else LMLAB_ROOT, else `root` in the nearest lmlab.toml upwards, else the user's data folder.

    >>> choose_root("/data/lab")
    Path('/data/lab')
    """
    chosen = flag or environ.root() or _from_file(start or pathlib.Path.cwd())
    root = Path(chosen) if chosen else Path(environ.data_dir())
    if root.is_local and root.exists() and not root.is_dir():
        raise StorageError(f"The root {root} is a file, not a folder. Choose another --root.")
    return root


def _from_file(start: pathlib.Path) -> str | None:
    for folder in (start, *start.parents):
        path = folder / FILE
        if not path.is_file():
            continue
        try:
            root = tomllib.loads(path.read_text()).get("root")
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}. Correct it.") from error
        if root is None:
            return None
        if not isinstance(root, str) or not root:
            raise ConfigError(f"root={root!r} in {path} must be a path or an address in quotes.")
        # A relative root means the same folder from wherever below the command is run.
        return root if "://" in root else str(folder / root)
    return None


def probe(root: Path) -> None:
    """Refuse a store that can't create a file exactly once: two runners would both build a step there."""
    path = root / ".state" / f"probe-{secrets.token_hex(8)}"
    try:
        first, second = path.create_bytes(b"1"), path.create_bytes(b"2")
    finally:
        path.remove()
    if not first or second:
        raise StorageError(
            f"{root} lets a second writer create a file that is already there, so two runners could both "
            "build one artifact. Use a store with conditional writes (local disk, S3, R2, GCS)."
        )
