"""Files of the hub, of web servers that break off, of buckets and of folders, into one artifact."""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request

import pytest

from lmlab.core.errors import ConfigError, InputError, Refused, StorageError
from lmlab.corpus import Files, Slice, Source, fetch
from lmlab.corpus.fetching import fetch_all
from lmlab.storage.parts import Ranges
from services.loopback_hub import COMMIT, FILES, HUGE
from services.ranged_server import noise
from services.starting import service

SLICES = (Slice("prose", ("*",)),)
QUICK = Ranges(count=4, connections=2, tries=8, first_wait_s=0.001, longest_wait_s=0.004)


def silent(_what: str, _done: int, _total: int) -> None: ...


def hub_files(repository="acme/corpus", *patterns, revision=COMMIT):
    place = f"hf://datasets/{repository}@{revision}"
    return Files("sample", place, "MIT", SLICES, patterns or ("data/deep/*.jsonl",))


def page(address, data, file="page.bin"):
    return Source("web", address, "1", file, hashlib.sha256(data).hexdigest(), "CC0-1.0", SLICES)


def ask(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return json.loads(answer.read())


@pytest.fixture
def at_hub(hub, monkeypatch, tmp_path):
    """The loopback hub is the hub, and nobody has a token."""
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    (tmp_path / "lmlab.toml").write_text("")
    for repository in ("corpus", "gated", "huge"):
        ask(f"{hub}/asked/acme/{repository}")
    return hub


@pytest.fixture(scope="module")
def ranged():
    """A server of ranges that breaks off."""
    with service("ranged_server", "7") as address:
        yield address


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """One try a request, so that the tries of a range are counted one by one."""
    (tmp_path / "lmlab.toml").write_text("[limits]\nconnect_s = 2\nread_s = 2\ntotal_s = 8\ntries = 1\n")
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))


def contents(out):
    archives = out.path / "archives"
    return {path.relative_to(archives): path.read_bytes() for path in archives.walk()}


# -- the hub ---------------------------------------------------------------------------------------


def test_only_the_files_of_the_patterns_come_with_their_digests_and_license(at_hub, out):
    raw = fetch.body(out(), (hub_files("acme/corpus", "data/deep/*-0000[12].jsonl", "README.md"),))
    names = ["README.md", "data/deep/part-00001.jsonl", "data/deep/part-00002.jsonl"]
    assert contents(out()) == {f"sample/{name}": FILES[name] for name in names}
    entries = json.loads((out().path / "manifest.json").read_text())["archives"]
    assert [entry["file"] for entry in entries] == [f"sample/{name}" for name in names]
    assert {(e["registry"], e["version"], e["license"], e["domain"]) for e in entries} == {
        ("hf", COMMIT, "MIT", "prose")
    }
    assert [e["sha256"] for e in entries] == [hashlib.sha256(FILES[name]).hexdigest() for name in names]
    assert (raw.archives, raw.size_bytes) == (3, sum(len(FILES[name]) for name in names))
    # No folder but the named one was listed, and each file was asked for once.
    asked = ask(f"{at_hub}/asked/acme/corpus")
    assert sorted(a for a in asked if a.startswith("GET data/deep/part")) == [f"GET {n}" for n in names[1:]]
    assert "GET " not in asked


def test_a_large_file_behind_a_redirect_is_proved_by_the_digest_that_the_hub_lists(at_hub, out):
    fetch_all([hub_files("acme/corpus", "data/large.bin")], out().path, silent, QUICK)
    assert contents(out()) == {"sample/data/large.bin": FILES["data/large.bin"]}


def test_a_rerun_fetches_only_what_is_missing(at_hub, out):
    sources = (hub_files("acme/corpus", "data/deep/*.jsonl"),)
    fetch.body(out(), sources)
    manifest = (out().path / "manifest.json").read_bytes()
    ask(f"{at_hub}/asked/acme/corpus")
    (out().path / "archives/sample/data/deep/part-00003.jsonl").remove()
    fetch.body(out(), sources)
    asked = [a for a in ask(f"{at_hub}/asked/acme/corpus") if "part-" in a]
    assert asked == ["GET data/deep/part-00003.jsonl"]
    assert (out().path / "manifest.json").read_bytes() == manifest
    assert not (out().path / ".success").exists()


def test_a_fetch_that_was_cut_off_goes_on_from_its_records(at_hub, out):
    evil = Files("evil", f"hf://datasets/acme/evil@{COMMIT}", "MIT", SLICES)
    with pytest.raises(InputError):
        fetch.body(out(), (hub_files(), evil))
    assert not (out().path / "manifest.json").exists()
    ask(f"{at_hub}/asked/acme/corpus")
    fetch.body(out(), (hub_files(),))
    assert [a for a in ask(f"{at_hub}/asked/acme/corpus") if "part-" in a] == []
    assert len(contents(out())) == 8


@pytest.mark.parametrize(
    ("token", "words"),
    [(None, "401.*No token is given"), ("hf_good", "403.*<secret from env:HF_TOKEN> lacks access")],
)
def test_a_gated_repository_is_asked_once_and_says_what_is_missing(at_hub, out, monkeypatch, token, words):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(Refused, match=words) as caught:
        fetch_all([hub_files("acme/gated")], out().path, silent, QUICK)
    assert "\n" not in str(caught.value)
    assert len(ask(f"{at_hub}/asked/acme/gated")) == 1
    assert contents(out()) == {}


def test_a_page_that_wants_a_token_is_asked_once_too(at_hub, out):
    source = page(f"{at_hub}/datasets/acme/gated/resolve/main/README.md", b"")
    with pytest.raises(Refused, match=r"401.*No token is given"):
        fetch_all([source], out().path, silent, QUICK)
    assert len(ask(f"{at_hub}/asked/acme/gated")) == 1


def test_the_login_file_of_the_hubs_own_command_is_not_read(at_hub, out, monkeypatch, tmp_path):
    home = tmp_path / "home"
    for place in (home / ".cache/huggingface/token", home / ".huggingface/token"):
        place.parent.mkdir(parents=True)
        place.write_text("hf_member")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(home / ".cache/huggingface"))
    with pytest.raises(Refused, match="No token is given"):
        fetch_all([hub_files("acme/gated")], out().path, silent, QUICK)


def test_a_busy_hub_is_asked_again_after_the_time_it_names(at_hub, out):
    fetch_all([hub_files("acme/busy")], out().path, silent, QUICK)
    assert len(contents(out())) == 8


@pytest.mark.parametrize("revision", ["main", "v1", "refs/convert/parquet"])
def test_a_branch_is_no_revision(revision):
    with pytest.raises(ConfigError, match="names no commit"):
        hub_files(revision=revision)


def test_a_name_that_leads_outside_is_refused_and_writes_nothing(at_hub, out, tmp_path):
    with pytest.raises(InputError, match=r"evil.txt', which leads elsewhere"):
        fetch_all([hub_files("acme/evil", "data/*")], out().path, silent, QUICK)
    assert not list(tmp_path.rglob("evil.txt"))


def test_patterns_that_fit_nothing_name_the_source(at_hub, out):
    with pytest.raises(
        InputError, match=r"holds no file that fits data/none/\*\. Correct the patterns of sample"
    ):
        fetch_all([hub_files("acme/corpus", "data/none/*")], out().path, silent, QUICK)


@pytest.mark.slow
def test_a_listing_of_50000_files_comes_in_pages(at_hub, out):
    from lmlab.corpus.places import _listed

    assert len(_listed(hub_files("acme/huge", "data/**"))) == HUGE
    assert len(ask(f"{at_hub}/asked/acme/huge")) == HUGE // 1000


# -- servers that break off ------------------------------------------------------------------------


def test_a_server_that_cuts_at_random_gives_the_exact_bytes(ranged, out, limits):
    data = noise(3_000_017)
    fetch_all([page(f"{ranged}/random/3000017", data)], out().path, silent, QUICK)
    assert contents(out()) == {"page.bin": data}


def test_a_server_that_is_slow_but_moves_is_not_given_up(ranged, out, limits):
    data = noise(90_000)
    ask(f"{ranged}/seen")
    fetch_all([page(f"{ranged}/slow/90000", data)], out().path, silent, QUICK)
    assert contents(out()) == {"page.bin": data}
    ranges = [seen[2] for seen in ask(f"{ranged}/seen") if seen[0] == "GET"]
    assert len(ranges) >= 90
    assert len(set(ranges)) == len(ranges)


def test_a_stalled_server_is_given_up_after_eight_tries_without_a_byte(ranged, out, limits):
    ask(f"{ranged}/seen")
    one = Ranges(count=1, connections=1, tries=8, first_wait_s=0.001, longest_wait_s=0.004)
    with pytest.raises(StorageError, match="stalled/50000 could not be read"):
        fetch_all([page(f"{ranged}/stalled/50000", noise(50_000))], out().path, silent, one)
    assert [seen[0] for seen in ask(f"{ranged}/seen")] == ["HEAD", *["GET"] * 8]
    assert out().path.walk() == []


def test_a_short_body_is_never_published_and_what_came_is_not_fetched_again(ranged, out, limits):
    with pytest.raises(StorageError, match="short/80000 could not be read"):
        fetch_all([page(f"{ranged}/short/80000", noise(80_000))], out().path, silent, QUICK)
    assert out().path.walk() == []
    ask(f"{ranged}/seen")
    with pytest.raises(StorageError):
        fetch_all([page(f"{ranged}/short/80000", noise(80_000))], out().path, silent, QUICK)
    assert {seen[2] for seen in ask(f"{ranged}/seen") if seen[0] == "GET"} == {"79500-79999"}


def test_a_staged_file_is_not_asked_for(ranged, out, limits):
    source = page(f"{ranged}/plain/5000", noise(5000))
    fetch_all([source], out().path, silent, QUICK)
    ask(f"{ranged}/seen")
    fetch_all([source], out().path, silent, QUICK)
    assert ask(f"{ranged}/seen") == []


def test_a_server_without_ranges_or_length_is_read_whole_and_it_is_said(ranged, out, limits):
    said = []
    source = page(f"{ranged}/whole/70000", noise(70_000))
    fetch_all([source], out().path, lambda what, done, total: said.append(what), QUICK)
    assert contents(out()) == {"page.bin": noise(70_000)}
    assert "page.bin: whole, its server gives no ranges" in said


def test_a_wrong_digest_names_both_and_leaves_nothing(ranged, out, limits):
    with pytest.raises(InputError, match=r"has sha256 [0-9a-f]{64} instead of [0-9a-f]{64}"):
        fetch_all([page(f"{ranged}/plain/5000", b"other")], out().path, silent, QUICK)
    assert out().path.walk() == []


def test_backoff_doubles_from_5_to_120_seconds_by_default():
    from lmlab.corpus.places import PATIENT

    waits = [min(PATIENT.first_wait_s * 2**i, PATIENT.longest_wait_s) for i in range(PATIENT.tries - 1)]
    assert waits == [5, 10, 20, 40, 80, 120, 120]
    assert (PATIENT.count, PATIENT.connections) == (32, 8)


# -- buckets and folders ---------------------------------------------------------------------------


def test_files_below_any_place_are_brought_and_hashed(any_root, out):
    for name in ("a/one.txt", "a/b/two.txt", "c/three.txt"):
        (any_root / "mine" / name).write_text(name)
    source = Files("mine", str(any_root / "mine"), "CC0-1.0", SLICES, ("a/**", "c/{two,three}.txt"))
    fetch_all([source], out().path, silent, QUICK)
    assert contents(out()) == {f"mine/{n}": n.encode() for n in ("a/b/two.txt", "a/one.txt", "c/three.txt")}


def test_a_changed_file_of_a_folder_is_brought_again(tmp_path, out):
    (tmp_path / "text.jsonl").write_text('{"text": "one"}\n')
    source = Files("mine", str(tmp_path / "text.jsonl"), "CC0-1.0", SLICES)
    first = fetch_all([source], out().path, silent)
    os.utime(tmp_path / "text.jsonl", (1, 1))
    assert fetch_all([source], out().path, silent) == first
    (tmp_path / "text.jsonl").write_text('{"text": "two"}\n')
    second = fetch_all([source], out().path, silent)
    assert first["archives"][0]["sha256"] != second["archives"][0]["sha256"]
    assert contents(out()) == {"mine/text.jsonl": b'{"text": "two"}\n'}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.parquet", b"PAR1 cut off", "no footer"),
        ("a.parquet", b"", "no bytes"),
        ("a.jsonl.zst", b"plain", "which no .zst has"),
        ("a.jsonl", b"\n<!DOCTYPE html><title>503</title>", "an HTML page in place of .jsonl"),
        ("a.warc.gz", b"<html>", "an HTML page in place of .gz"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused(tmp_path, out, name, data, words):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        fetch_all([Files("mine", str(tmp_path / "in"), "MIT", SLICES)], out().path, silent)
    assert "\n" not in str(caught.value)
    assert out().path.walk() == []


def test_two_sources_of_one_name_are_refused(tmp_path, out):
    (tmp_path / "x.txt").write_text("x")
    source = Files("mine", str(tmp_path / "x.txt"), "MIT", SLICES)
    with pytest.raises(ConfigError, match="mine is the name of two sources"):
        fetch_all([source, source], out().path, silent)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".hidden", "a\\..\\x"])
def test_a_source_cannot_name_a_place_outside(name):
    with pytest.raises(ConfigError, match="leads elsewhere"):
        Files(name, "/data", "MIT", SLICES)


# -- when it goes wrong in the middle --------------------------------------------------------------

FETCH = """
import sys
from lmlab.corpus import Files, Slice
from lmlab.corpus.fetching import fetch_all
from lmlab.storage import Path
source = Files("sample", sys.argv[1], "MIT", (Slice("prose", ("*",)),), (sys.argv[3],))
fetch_all([source], Path(sys.argv[2]), lambda *_: None)
"""


@pytest.mark.slow
def test_a_killed_fetch_goes_on_with_what_is_missing(at_hub, out, fault_proxy, monkeypatch):
    faults = fault_proxy(at_hub)
    monkeypatch.setenv("HF_ENDPOINT", faults.address)
    faults.set({"do": "delay", "method": "GET", "path": "part-0000[4-7]", "seconds": 30.0})
    source = hub_files()
    words = [sys.executable, "-c", FETCH, source.place, str(out().path), source.files[0]]
    first = subprocess.Popen(words)
    while len(list((out().path.local / ".success").rglob("*.json"))) < 4:
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert not (out().path / "manifest.json").exists()
    faults.set()
    subprocess.run(words, check=True)
    asked = [path for method, path in faults.seen() if method == "GET" and "/resolve/" in path]
    assert len(asked) == 4
    assert len(contents(out())) == 8
    assert not (out().path / ".success").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing(at_hub, out):
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))\n{FETCH}"
    source = hub_files("acme/corpus", "data/large.bin")
    words = [sys.executable, "-c", limited, source.place, str(out().path), source.files[0]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "StorageError" in done.stderr.splitlines()[-1]
    assert "the disk is full" in done.stderr.splitlines()[-1]
    assert [path for path in out().path.walk() if "large.bin" in path.name] == []
