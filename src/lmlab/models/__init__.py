"""Architectures as pure functions over nested dicts, their loss, and Hugging Face folders."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Batch": ".loss",
        "Dense": ".config",
        "Experts": ".config",
        "Grug": ".config",
        "Model": ".config",
        "Output": ".layers",
        "Params": ".layers",
        "RouterStats": ".layers",
        "apply_pending": ".grug",
        "bits_per_byte": ".loss",
        "forward": ".decoder",
        "init_cache": ".cache",
        "init_params": ".decoder",
        "keep_freed_memory": ".host",
        "logits": ".decoder",
        "mean_loss": ".loss",
        "prepare_process": ".host",
        "router_bias_update": ".grug",
        "token_losses": ".loss",
    },
)
