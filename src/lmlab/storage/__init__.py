"""Where files live: one path type over local folders and object stores, publishing and copying, roots."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.storage.copy import publish as publish, sync as sync, verified_copy as verified_copy
    from lmlab.storage.paths import (
        Path as Path,
        Stat as Stat,
        read_json as read_json,
        write_json as write_json,
    )
    from lmlab.storage.roots import choose_root as choose_root, probe as probe

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Path": ".paths",
        "Stat": ".paths",
        "choose_root": ".roots",
        "probe": ".roots",
        "publish": ".copy",
        "read_json": ".paths",
        "sync": ".copy",
        "verified_copy": ".copy",
        "write_json": ".paths",
    },
)
