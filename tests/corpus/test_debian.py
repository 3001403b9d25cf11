"""Debian packages: fetched by apt where there is one, read as a stream, every file once."""

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile

import pytest
import zstandard

from lmlab.core import environ
from lmlab.core.errors import HostError, InputError
from lmlab.corpus import Slice, Source, extract, fetch
from lmlab.corpus.archives import members
from lmlab.corpus.fetching import fetch_all
from lmlab.storage import Path


def data_tar(files, links):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, (kind, target) in links.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)
    return packed.getvalue()


def write_deb(path, name, data):
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for member, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (name, data)):
            file.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))


PACKERS = {
    "data.tar.xz": lzma.compress,
    "data.tar.gz": gzip.compress,
    "data.tar.zst": zstandard.compress,
    "data.tar": bytes,
}
FILES = {"usr/share/doc/a.txt": b"text\n" * 5000, "usr/share/doc/b.txt": b"more\n" * 50}
LINKS = {
    "usr/share/doc/hard.txt": (tarfile.LNKTYPE, "./usr/share/doc/a.txt"),
    "usr/share/doc/soft.txt": (tarfile.SYMTYPE, "a.txt"),
}


@pytest.mark.parametrize("name", PACKERS)
def test_a_file_with_several_names_is_read_once(tmp_path, name):
    write_deb(tmp_path / "x.deb", name, PACKERS[name](data_tar(FILES, LINKS)))
    found = dict(members(Path(tmp_path / "x.deb"), ("*.txt",)))
    assert found == FILES


@pytest.mark.parametrize("name", ["data.tar.xz", "data.tar.gz"])
@pytest.mark.parametrize("left", [0.3, 0.7, 0.99])
def test_a_cut_package_is_an_error_that_names_it(tmp_path, name, left):
    write_deb(tmp_path / "x.deb", name, PACKERS[name](data_tar({"a.txt": bytes(range(256)) * 400}, {})))
    whole = (tmp_path / "x.deb").read_bytes()
    (tmp_path / "x.deb").write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(InputError, match=r"x\.deb .* is truncated or corrupt"):
        list(members(Path(tmp_path / "x.deb"), ("*",)))


def test_what_is_no_package_is_an_error(tmp_path):
    (tmp_path / "x.deb").write_bytes(b"<html>")
    with pytest.raises(InputError, match="does not begin as a Debian package does"):
        list(members(Path(tmp_path / "x.deb"), ("*",)))


@pytest.fixture
def fortunes(tmp_path, monkeypatch):
    """A small real package as this machine's apt has it: source and slices."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get (Debian)")
    shown = subprocess.run(["apt-cache", "show", "fortunes-min"], capture_output=True, text=True, check=False)
    told = dict(line.split(": ", 1) for line in shown.stdout.split("\n\n")[0].splitlines() if ": " in line)
    if "SHA256" not in told:
        message = "needs apt's lists (apt-get update)"
        assert environ.get("CI") is None, message
        pytest.skip(message)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    version = told["Version"]
    file = f"fortunes-min_{version.replace(':', '%3a')}_all.deb"
    pieces = (Slice("prose", ("*/games/fortunes/*[!.]???", "*/fortunes/fortunes"), language="en"),)
    return Source("debian", "fortunes-min", version, file, told["SHA256"], "GPL-2.0-or-later", pieces)


@pytest.mark.slow
def test_a_package_is_fetched_by_apt_and_becomes_documents(fortunes, out, rows_of):
    try:
        raw = fetch.body(out("raw"), (fortunes,))
    except HostError as error:
        pytest.skip(f"needs a Debian mirror: {error}")
    assert raw.archives == 1
    from lmlab.corpus import Raw

    extract.body(out("docs"), Raw.at(str(out("raw").path), archives=1, size_bytes=raw.size_bytes))
    rows = rows_of(out("docs").path)
    assert any("fortunes" in row["source_id"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_a_version_that_apt_does_not_have_says_what_to_do(fortunes, out):
    wrong = Source(
        "debian", "fortunes-min", "0:0.0-0", "x.deb", "0" * 64, "GPL-2.0-or-later", fortunes.slices
    )
    with pytest.raises(HostError, match=r"fortunes-min==0:0.0-0 can't be had.*run apt-get update") as caught:
        fetch_all([wrong], out().path, lambda *_: None)
    assert "\n" not in str(caught.value)
