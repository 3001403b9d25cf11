"""Which root a command works on."""

import pytest

from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import Path, choose_root, probe, stores


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No flag, no variable, no lmlab.toml."""
    monkeypatch.delenv("LMLAB_ROOT")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "work" / "deep").mkdir(parents=True)
    return tmp_path


def test_the_flag_wins_over_the_variable_over_the_file_over_the_users_folder(nowhere, monkeypatch):
    deep = nowhere / "work" / "deep"
    assert choose_root(None, deep) == Path(nowhere / "data" / "lmlab")
    (nowhere / "work" / "lmlab.toml").write_text('root = ".lmlab"')
    assert choose_root(None, deep) == Path(nowhere / "work" / ".lmlab")
    monkeypatch.setenv("LMLAB_ROOT", str(nowhere / "variable"))
    assert choose_root(None, deep) == Path(nowhere / "variable")
    assert choose_root(str(nowhere / "flag"), deep) == Path(nowhere / "flag")


def test_the_nearest_file_counts_even_if_it_names_no_root(nowhere):
    (nowhere / "lmlab.toml").write_text('root = "/far"')
    (nowhere / "work" / "lmlab.toml").write_text("")
    assert choose_root(None, nowhere / "work" / "deep") == Path(nowhere / "data" / "lmlab")


@pytest.mark.parametrize(
    ("text", "message"), [("root = ", "is not valid TOML"), ("root = 3", "must be a path")]
)
def test_a_wrong_file_is_named(nowhere, text, message):
    (nowhere / "lmlab.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        choose_root(None, nowhere)


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file, not a folder"):
        choose_root(str(tmp_path / "file"))


def test_the_probe_passes_stores_that_create_once_and_leaves_nothing(tmp_path):
    for root in (Path(tmp_path / "root"), Path("memory://probe")):
        probe(root)
        assert root.walk() == []


def test_the_probe_refuses_a_store_that_ignores_the_condition(monkeypatch):
    monkeypatch.setattr(stores, "create", lambda scheme, bucket, key, data, place: True)
    with pytest.raises(StorageError, match="lets a second writer create"):
        probe(Path("memory://forgetful-probe"))
