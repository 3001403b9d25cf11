"""Units, errors, resources and lazy names."""

import doctest
import pickle
import pkgutil
from importlib import import_module

import pytest

import lmlab
from lmlab.core import environ, errors
from lmlab.core.errors import ConfigError, LmlabError
from lmlab.core.lazy import exports
from lmlab.core.resources import Resources
from lmlab.core.units import format_bytes, format_count


def all_errors(kind=LmlabError):
    return [kind, *(found for child in kind.__subclasses__() for found in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_crosses_a_process_border(kind):
    copy = pickle.loads(pickle.dumps(kind("what, why, what to do")))
    assert type(copy) is kind
    assert str(copy) == "what, why, what to do"


def test_the_error_tree_in_the_docstring_is_complete():
    assert all(
        kind.__name__ in (errors.__doc__ or "") for kind in all_errors() if kind.__module__ == errors.__name__
    )


@pytest.mark.parametrize("module", ["config", "lazy", "resources", "units"])
def test_the_examples_in_docstrings_run(module):
    assert doctest.testmod(import_module(f"lmlab.core.{module}")).failed == 0


@pytest.mark.parametrize("wrong", [{"cpu": 0}, {"memory_bytes": 0}, {"gpus": -1}, {"tasks": 0}])
def test_impossible_resources_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Resources(**wrong)


def test_units_keep_their_size_at_the_borders():
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1024**3) == "1.0 GiB"
    assert format_count(999_999) == "1M"


def test_an_unknown_lazy_name_is_an_attribute_error():
    get, _, _ = exports("lmlab.core", {"format_bytes": ".units"})
    with pytest.raises(AttributeError, match="nothing"):
        get("nothing")


def test_every_public_name_of_the_root_can_be_loaded():
    for name in lmlab.__all__:
        assert getattr(lmlab, name) is not None


def test_a_rank_above_zero_is_seen(monkeypatch):
    assert environ.rank() is None
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert environ.rank() is None
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert environ.rank() == ("SLURM_PROCID", 3)


@pytest.mark.parametrize(
    "package", sorted(pkgutil.iter_modules(lmlab.__path__), key=lambda found: found.name)
)
def test_no_public_name_of_a_package_is_hidden_by_a_module_of_that_name(package):
    loaded = import_module(f"lmlab.{package.name}")
    modules = {found.name for found in pkgutil.iter_modules(loaded.__path__)}
    assert not modules & set(getattr(loaded, "__all__", ()))
