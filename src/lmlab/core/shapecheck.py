"""Shape checking of the jax packages by jaxtyping and beartype, on in the tests and in their step processes.

Modules named `kernels` are left out: numba can't compile a wrapped function.
"""

from pathlib import Path

from lmlab.core import environ

PACKAGES = ("models", "training", "serving", "evals", "posttraining")


def install_if_asked() -> None:
    """Install the import hook when LMLAB_CHECK_SHAPES is set; call before the packages are imported."""
    if environ.get("LMLAB_CHECK_SHAPES") is None:
        return
    from jaxtyping import install_import_hook  # 0.2 s: only paid in the tests

    install_import_hook(_modules(), "beartype.beartype")


def _modules() -> list[str]:
    source = Path(__file__).parents[1]
    files = (path for package in PACKAGES for path in sorted((source / package).rglob("*.py")))
    wanted = (path for path in files if path.stem not in ("kernels", "__init__"))
    return [".".join(("lmlab", *path.relative_to(source).with_suffix("").parts)) for path in wanted]
