"""Scratch: how long it lives, where it may lie, and what sweeping leaves."""

import os
import shutil
import threading
import time
import warnings

import pytest

from lmlab.core.errors import ConfigError
from lmlab.storage import Path
from lmlab.storage.scratch import DAY_S, lifecycle, scratch, sweep


@pytest.fixture
def root(tmp_path):
    return Path(tmp_path / "root")


def aged(path: Path, days: float) -> Path:
    """A file last written so many days ago."""
    path.write_text("x" * 10)
    os.utime(path, (time.time() - days * DAY_S,) * 2)
    return path


@pytest.mark.parametrize("days", [1, 7, 14, 30])
def test_a_length_that_has_a_rule_is_taken_as_it_is(root, days):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place = scratch(days, root)
    assert place.parent == root / "tmp" / f"ttl={days}d"
    assert scratch(days, root) != place
    assert scratch(days, root, "mine") == place.parent / "mine"


@pytest.mark.parametrize(("asked", "given"), [(8, 14), (0.5, 1), (6.5, 7), (15, 30)])
def test_other_lengths_are_rounded_up_with_a_warning(root, asked, given):
    with pytest.warns(UserWarning, match=rf"{asked:g} days is kept for {given}:"):
        place = scratch(asked, root)
    assert place.parent.name == f"ttl={given}d"


def test_what_is_longer_than_kept_is_clamped_with_a_warning(root):
    with pytest.warns(UserWarning, match="Scratch for 45 days is kept for 30:"):
        assert scratch(45, root).parent.name == "ttl=30d"


@pytest.mark.parametrize("days", [0, -3, float("nan")])
def test_no_days_are_an_error(root, days):
    with pytest.raises(ConfigError, match=f"Scratch for {days} days"):
        scratch(days, root)


def test_scratch_lies_in_this_machines_region_and_an_unknown_one_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "lmlab.toml").write_text('root = "eu"\n[roots]\neurope-west4 = "eu"\nus-central1 = "us"\n')
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    monkeypatch.delenv("LMLAB_ROOT")
    monkeypatch.setenv("LMLAB_REGION", "us-central1")
    assert str(scratch(7)).startswith(f"{tmp_path}/us/tmp/ttl=7d/")
    monkeypatch.setenv("LMLAB_REGION", "moon-west1")
    with pytest.raises(ConfigError, match=r"in moon-west1, and .* has no root there"):
        scratch(7)
    assert not (tmp_path / "us").exists()


def test_an_undeclared_bucket_is_refused():
    with pytest.raises(ConfigError, match="s3://guessed-us-west4 is no root of this lab"):
        scratch(7, Path("s3://guessed-us-west4"))


def test_sweeping_removes_what_has_expired_and_nothing_else(root):
    old = [aged(root / "tmp" / "ttl=1d" / "a" / "deep" / "x", 1.5), aged(root / "tmp" / "ttl=7d" / "b", 8)]
    kept = [
        aged(root / "tmp" / "ttl=1d" / "a" / "young", 0.5),
        aged(root / "tmp" / "ttl=14d" / "c", 13),
        aged(root / "tmp" / "mine" / "x", 999),
        aged(root / "runs" / "ttl=1d" / "x", 999),
    ]
    assert sorted(sweep(root, time.time(), remove=False)) == [(path, 10) for path in sorted(old)]
    assert all(path.exists() for path in old)
    assert sorted(sweep(root, time.time())) == [(path, 10) for path in sorted(old)]
    assert root.walk() == sorted(kept)
    assert not (root / "tmp" / "ttl=1d" / "a" / "deep").exists()


def test_sweeping_follows_no_link_out_of_scratch(root, tmp_path):
    precious = aged(Path(tmp_path / "precious" / "x"), 999)
    (root / "tmp" / "ttl=1d").make_folder()
    (root / "tmp" / "ttl=1d" / "link").local.symlink_to(tmp_path / "precious")
    sweep(root, time.time())
    assert precious.exists()


def test_sweeping_expires_objects_of_any_store(any_root):
    path = scratch(1, any_root) / "part"
    path.write_text("x")
    assert sweep(any_root, time.time()) == []
    assert sweep(any_root, time.time() + 2 * DAY_S) == [(path, 1)]
    assert any_root.walk() == []


def test_a_buckets_rules_name_every_length_below_the_root():
    amazon = lifecycle(Path("s3://lab-us/lmlab"))["Rules"]
    assert {(r["Filter"]["Prefix"], r["Expiration"]["Days"]) for r in amazon if "Expiration" in r} >= {
        ("lmlab/tmp/ttl=1d/", 1),
        ("lmlab/tmp/ttl=30d/", 30),
    }
    google = lifecycle(Path("gs://lab-eu"))["rule"]
    assert google[0] == {
        "action": {"type": "Delete"},
        "condition": {"age": 1, "matchesPrefix": ["tmp/ttl=1d/"]},
    }
    with pytest.raises(ConfigError, match="`lmlab gc` sweeps it"):
        lifecycle(Path("/data/lab"))


def test_sweeping_beside_owners_that_remove_their_files_is_quiet(root):
    stop = threading.Event()

    def own():
        while not stop.is_set():
            for name in "abcdef":
                aged(root / "tmp" / "ttl=1d" / name / "x", 2)
            shutil.rmtree(root / "tmp", ignore_errors=True)

    owner = threading.Thread(target=own)
    owner.start()
    try:
        for _ in range(50):
            sweep(root, time.time())
    finally:
        stop.set()
        owner.join()
