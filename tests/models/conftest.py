"""Both architectures, small."""

import pytest
from small_models import small_dense, small_grug


@pytest.fixture(params=["grug", "dense"])
def model(request):
    """A model of either architecture."""
    return small_grug() if request.param == "grug" else small_dense()
