"""The site: server-rendered pages over the query service; no storage, no credentials, one small script."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, {"build_app": ".app", "supervise": ".supervisor"})
