"""Reading from the hub and from plain web servers."""

import hashlib
import pickle
import threading
import time
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import Path
from services.loopback_hub import FILES, LARGE

DATA = "hf://datasets/acme/corpus"


@pytest.fixture
def reach(hub, tmp_path, monkeypatch):
    """Writes lmlab.toml; the hub is the loopback one."""

    def declare(text: str = "") -> None:
        (tmp_path / "lmlab.toml").write_text(text)

    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    declare()
    return declare


def test_files_are_listed_over_all_pages_and_read(reach):
    root = Path(DATA)
    assert {path.relative_to(root): path.read_bytes() for path in root.walk()} == FILES
    assert [path.name for path in root.list()] == ["README.md", "data"]
    assert [path.name for path in (root / "data").list()] == ["a b#%.txt", "deep", "empty.bin", "large.bin"]
    assert [path.name for path in root.glob("data/deep/*-0000[12].jsonl")] == [
        "part-00001.jsonl",
        "part-00002.jsonl",
    ]
    assert {path.name: stat.size_bytes for path, stat in root.walk_stats()}["large.bin"] == len(LARGE)


def test_large_files_behind_a_redirect_have_their_own_size_version_and_ranges(reach):
    path = Path(DATA) / "data" / "large.bin"
    stat = path.stat()
    assert (stat.size_bytes, stat.etag) == (len(LARGE), hashlib.sha256(LARGE).hexdigest())
    assert path.read_range(500, 20) == LARGE[500:520]
    assert path.read_range(len(LARGE) - 5, 50) == LARGE[-5:]
    assert path.read_range(len(LARGE) + 5, 50) == b""
    with path.open() as file:
        file.seek(-300, 2)
        assert file.read() == LARGE[-300:]
    assert b"".join(path.chunks()) == LARGE


def test_existence_folders_and_what_is_missing(reach):
    root = Path(DATA)
    assert [(root / name).exists() for name in ("README.md", "data", "none", "none/x")] == [
        True,
        True,
        False,
        False,
    ]
    assert [(root / name).is_dir() for name in ("README.md", "data", "none")] == [False, True, False]
    assert (root / "none").list() == []
    assert (root / "none").read_if_present() is None
    with pytest.raises(StorageError, match=r"corpus/none does not exist"):
        (root / "none").read_bytes()
    with pytest.raises(StorageError, match="does not exist"):
        Path("hf://datasets/acme/corpus@nope").list()


def test_revisions_models_and_copies(reach, tmp_path):
    assert Path(f"{DATA}@v1/README.md").read_bytes() == b"old\n"
    assert [path.name for path in Path(f"{DATA}@v1").walk()] == ["README.md"]
    assert Path(f"{DATA}@refs/convert/parquet/x.parquet").read_bytes() == b"PAR1"
    assert Path("hf://models/acme/model/README.md").read_bytes() == FILES["README.md"]
    (Path(DATA) / "data/large.bin").copy_to(Path(tmp_path / "large.bin"))
    assert (tmp_path / "large.bin").read_bytes() == LARGE
    path = Path(f"{DATA}@v1/README.md")
    assert pickle.loads(pickle.dumps(path)).read_bytes() == b"old\n"


def test_a_gated_repository_names_the_setting_and_then_the_token(reach, monkeypatch):
    path = Path("hf://datasets/acme/gated/README.md")
    with pytest.raises(
        StorageError,
        match=r'401, GatedRepo.*No token is given: token = \["env:HF_TOKEN"\] under \[backends."hf://"\]',
    ):
        path.read_bytes()
    monkeypatch.setenv("LAB_TOKEN", "hf_good")
    reach('[backends."hf://"]\ntoken = "env:LAB_TOKEN"\n')
    with pytest.raises(
        StorageError, match=r"403, GatedRepo.*<secret from env:LAB_TOKEN> lacks access: ask for it"
    ) as caught:
        path.list()
    assert "hf_good" not in str(caught.value)
    monkeypatch.setenv("LAB_MEMBER", "hf_member")
    reach('[backends."hf://"]\ntoken = "env:LAB_MEMBER"\n')
    assert path.read_bytes() == FILES["README.md"]
    # The store of large files, another host, refuses whoever shows it the token.
    assert Path("hf://datasets/acme/gated/data/large.bin").read_bytes() == LARGE


def test_the_variable_counts_only_where_no_token_is_pinned(reach, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_member")
    path = Path("hf://spaces/acme/gated/README.md")
    assert path.read_bytes() == FILES["README.md"]
    monkeypatch.setenv("LAB_WEAK", "hf_good")
    reach('[backends."hf://"]\ntoken = "env:LAB_WEAK"\n')
    with pytest.raises(StorageError, match="403"):
        path.read_bytes()


def test_a_busy_hub_is_asked_again_but_not_for_ever(reach):
    assert Path("hf://datasets/acme/busy/README.md").read_bytes() == FILES["README.md"]
    with pytest.raises(StorageError, match="answers 429, and to wait 3600 s"):
        Path("hf://datasets/acme/closed/README.md").read_bytes()


@pytest.mark.parametrize("address", ["hf://corpora/a/b/c", "hf://datasets/onlyowner"])
def test_what_names_no_repository_is_refused(reach, address):
    with pytest.raises(ConfigError, match=r"Write hf://"):
        Path(address).read_bytes()


def test_an_impossible_address_is_refused(reach):
    with pytest.raises(ConfigError, match="is no address"):
        Path("http://127.0.0.1:port/x").read_bytes()


def test_nothing_is_written_to_a_hub(reach, tmp_path):
    path = Path(DATA) / "new"
    (tmp_path / "x").write_text("")

    def draft() -> None:
        with path.writer() as file:
            file.write_text("")

    def stream() -> None:
        with path.open_writer():
            pass

    acts = [
        lambda: path.write_bytes(b""),
        lambda: path.create_bytes(b""),
        path.remove,
        path.remove_tree,
        draft,
    ]
    acts += [stream, lambda: Path(tmp_path / "x").copy_to(path), lambda: (path.parent / "a").rename(path)]
    for act in acts:
        with pytest.raises(StorageError, match="can only be read"):
            act()


def test_plain_files_of_the_web_are_read(reach, hub):
    path = Path(f"{hub}/acme/model/resolve/main/data/large.bin")
    assert path.size() == len(LARGE)
    assert path.read_range(3, 4) == LARGE[3:7]
    assert [path.exists(), (path.parent / "none").exists()] == [True, False]
    with pytest.raises(StorageError, match="HTTP has no folders"):
        path.parent.list()


def test_a_server_without_ranges_is_read_whole_or_not_at_all(reach, tmp_path):
    (tmp_path / "page.txt").write_bytes(b"0123456789")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        path = Path(f"http://127.0.0.1:{server.server_port}/page.txt")
        assert (path.read_bytes(), path.size()) == (b"0123456789", 10)
        with pytest.raises(StorageError, match="gives no ranges"):
            path.read_range(0, 3)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("fault", [{"do": "drop"}, {"do": "status", "code": 502}])
def test_what_fails_once_is_tried_again(reach, hub, fault_proxy, monkeypatch, fault):
    faults = fault_proxy(hub)
    monkeypatch.setenv("HF_ENDPOINT", faults.address)
    reach("[limits]\nread_s = 1\ntotal_s = 4\n")
    faults.set({**fault, "times": 1})
    assert (Path(DATA) / "README.md").read_bytes() == FILES["README.md"]


def test_a_cut_file_goes_on_where_it_was_cut(reach, hub, fault_proxy, monkeypatch):
    faults = fault_proxy(hub)
    monkeypatch.setenv("HF_ENDPOINT", faults.address)
    faults.set({"do": "truncate", "path": "^/cdn/", "times": 2})
    path = Path(DATA) / "data/large.bin"
    assert path.read_bytes() == LARGE
    faults.set({"do": "truncate", "path": "^/cdn/", "times": 1})
    assert path.read_range(1000, 50_000) == LARGE[1000:51_000]


@pytest.mark.parametrize("fault", ["withhold", "headers", "truncate"])
def test_a_silent_or_cut_hub_is_an_error_within_the_total(reach, hub, fault_proxy, monkeypatch, fault):
    faults = fault_proxy(hub)
    monkeypatch.setenv("HF_ENDPOINT", faults.address)
    reach("[limits]\nconnect_s = 0.4\nread_s = 0.4\ntotal_s = 1\n")
    faults.set({"do": fault, "method": "GET"})
    began = time.monotonic()
    with pytest.raises(StorageError, match="could not be read") as caught:
        (Path(DATA) / "README.md").read_bytes()
    assert time.monotonic() - began < 1.9
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_is_no_hub_is_an_error_of_one_line(reach, gcs_endpoint, monkeypatch):
    urllib.request.urlopen(urllib.request.Request(f"{gcs_endpoint}/api", method="PUT"), timeout=9).close()
    place = f"{gcs_endpoint}/api/datasets/acme/corpus/tree/main"
    urllib.request.urlopen(urllib.request.Request(place, b"<html>", method="PUT"), timeout=9).close()
    monkeypatch.setenv("HF_ENDPOINT", gcs_endpoint)
    with pytest.raises(StorageError, match="is not what a hub answers") as caught:
        Path(DATA).list()
    assert "\n" not in str(caught.value)
