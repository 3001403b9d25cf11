"""Which root a command works on, and whether its store keeps the one promise claims need."""

import pathlib
import secrets

from lmlab.core import environ
from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import regions
from lmlab.storage.lab import Lab, lab
from lmlab.storage.paths import Path


def choose_root(flag: str | None = None, start: pathlib.Path | None = None) -> Path:
    """`--root`, else LMLAB_ROOT, else `root` in lmlab.toml, else its root for this region, else a default.

    A flag is handed on to child processes, so that steps and ranks keep their accounts at the same root.

    >>> choose_root("/data/lab")
    Path('/data/lab')
    """
    file = lab(start)
    chosen = flag or environ.root() or file.root
    root = regional_root(file) if chosen is None and file.roots else Path(chosen or environ.data_dir())
    if root.is_local and root.exists() and not root.is_dir():
        raise StorageError(f"The root {root} is a file, not a folder. Choose another --root.")
    if flag:
        environ.put("LMLAB_ROOT", str(root))
    return root


def regional_root(file: Lab | None = None) -> Path:
    """The root that lmlab.toml declares for this machine's region. Raises ConfigError, never invents one."""
    file, own = file or lab(), regions.own_region()
    for region, root in file.roots.items():
        if own is not None and regions.same_region(region, own):
            return Path(root)
    where = "The region of this machine is unknown" if own is None else f"This machine is in {own}"
    raise ConfigError(
        f"{where}, and {file.file} has no root there (only in {', '.join(file.roots) or 'none'}), so there "
        "is no place to write to. Add one to [roots], or name a --root."
    )


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
