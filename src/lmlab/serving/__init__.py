"""Serving: a JAX engine with continuous batching behind an OpenAI-compatible HTTP app."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Engine": ".engine",
        "Sampling": ".protocol",
        "Samples": ".steps",
        "build_app": ".app",
        "chat": ".commands",
        "sample": ".steps",
        "serve": ".commands",
    },
)
