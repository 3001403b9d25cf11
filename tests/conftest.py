"""Shape checking for the jax packages, and folders that no test shares with the user's own."""

import os

import pytest

from lmlab.core.shapecheck import install_if_asked

os.environ.setdefault("LMLAB_CHECK_SHAPES", "1")
install_if_asked()


@pytest.fixture(autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's root; the cache is shared, so that kernels compile once."""
    monkeypatch.setenv("LMLAB_ROOT", str(tmp_path_factory.mktemp("root")))
