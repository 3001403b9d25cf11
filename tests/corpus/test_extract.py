"""From archives to documents: every member accounted for, the same bytes for any number of workers."""

import json

import pytest

from lmlab.core.errors import InputError
from lmlab.corpus import Raw, Slice, extract
from lmlab.corpus.schema import document_id
from lmlab.dataflow import TaskFailed

SLICES = (
    Slice("docs", ("*/docs/*.txt",), language="en", license="CC0-1.0"),
    Slice("code", ("*.py",)),
    Slice("pages", ("*.html",), "html"),
)
MEMBERS = {
    "pkg/docs/one.txt": b"Some documentation.\n",
    "pkg/docs/logo.bin": b"\0\1\2",
    "pkg/a.py": b"print(1)\n",
    "pkg/__init__.py": b"",
    "pkg/copy.py": b"print(1)\n",
    "pkg/latin.py": "# voil\xe0, for one and all\n".encode("latin-1"),
    "pkg/utf16.py": "print('two bytes each')\n".encode("utf-16-le"),
    "pkg/garbage.py": bytes(range(128, 256)),
    "pkg/page.html": b'<html lang="fr"><body><p>Bonjour.</p></body></html>',
    "pkg/x.py": b"x",
}


def test_members_become_documents_with_their_origin(raw, out, rows_of):
    docs = extract.body(out(), raw({"pkg-1.tar.gz": (MEMBERS, SLICES)}), 1, 1)
    rows = rows_of(out().path)
    by_path = {json.loads(row["meta"])["path"]: row for row in rows}
    assert sorted(by_path) == [f"pkg/{name}" for name in
        ("a.py", "copy.py", "docs/one.txt", "latin.py", "page.html", "x.py")]  # fmt: skip
    assert json.loads(by_path["pkg/docs/one.txt"]["meta"]) == {
        "domain": "docs",
        "language": "en",
        "license": "CC0-1.0",
        "package": "pkg",
        "path": "pkg/docs/one.txt",
    }
    assert json.loads(by_path["pkg/page.html"]["meta"])["language"] == "fr"
    assert by_path["pkg/page.html"]["text"].strip() == "Bonjour."
    assert by_path["pkg/latin.py"]["text"].startswith("# voil�")
    assert by_path["pkg/x.py"]["text"] == "x"
    assert docs.documents == len(rows) == 6
    assert docs.size_bytes == sum(len(row["text"].encode()) for row in rows)


def test_documents_are_sorted_and_named_by_their_text(raw, out, rows_of):
    extract.body(out(), raw({"pkg-1.tar.gz": (MEMBERS, SLICES)}), 1, 1)
    rows = rows_of(out().path)
    assert all(row["id"] == document_id(row["text"]) for row in rows)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


def test_rejected_members_are_kept_with_their_reason_and_counted(raw, out, rows_of):
    extract.body(out(), raw({"pkg-1.tar.gz": (MEMBERS, SLICES)}), 1, 1)
    rejected = rows_of(out().path / "rejected" / "extract")
    reasons = {json.loads(row["meta"])["path"]: row["reason"] for row in rejected}
    assert reasons == {
        "pkg/__init__.py": "blank",
        "pkg/garbage.py": "not UTF-8 text: 128 of 128 characters are null or could not be decoded",
        "pkg/utf16.py": "not UTF-8 text: 24 of 48 characters are null or could not be decoded",
    }
    (stage,) = json.loads((out().path / "stages.json").read_text())["stages"]
    assert stage["dropped"] == {"blank": 1, "not UTF-8 text": 2}
    assert stage["documents_in"] - stage["documents_out"] == 3


def test_documents_shorter_than_asked_for_are_rejected(raw, out, rows_of):
    docs = extract.body(out(), raw({"pkg-1.tar.gz": (MEMBERS, SLICES)}), min_bytes=9, workers=1)
    reasons = [row["reason"] for row in rows_of(out().path / "rejected" / "extract")]
    assert sorted(reason for reason in reasons if "short" in reason) == [
        "too short: 1 bytes",
        "too short: 8 bytes",
    ]
    assert docs.documents == 4


def test_same_bytes_for_any_number_of_workers(raw, out):
    code = (Slice("code", ("*.py",)),)
    members = [{f"{name}.{i}.py": data for name, data in MEMBERS.items()} for i in range(3)]
    made = raw({f"p{i}-1.tar.gz": (own, code) for i, own in enumerate(members)})
    for workers in (1, 2):
        extract.body(out(str(workers)), made, 1, workers)
    one, two = ({path.relative_to(out(name).path): path.read_bytes() for path in out(name).path.walk()}
                for name in ("1", "2"))  # fmt: skip
    assert one == two
    assert not [name for name in one if "work" in name]


@pytest.mark.parametrize("workers", [1, 2])
def test_truncated_archive_is_named(raw, out, workers):
    made = raw({"pkg-1.tar.gz": (MEMBERS, SLICES)})
    file = (made.path / "archives" / "pkg-1.tar.gz").local
    file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(InputError, match=r"pkg-1\.tar\.gz .* is truncated or corrupt"):
        extract.body(out(), made, 1, workers)


def test_slice_that_matches_nothing_is_named(raw, out):
    made = raw({"pkg-1.zip": (MEMBERS, (Slice("music", ("*.mid",)),))})
    with pytest.raises(InputError, match=r"pkg-1\.zip holds no member for the domain 'music'"):
        extract.body(out(), made, 1, 1)


def test_manifest_without_archives_is_an_input_error(raw, out):
    with pytest.raises(InputError, match="lists no archives"):
        extract.body(out(), raw({}), 1, 1)


def test_member_that_its_renderer_cannot_read_is_named(raw, out):
    made = raw({"icons-1.tgz": ({"icons.json": b'{"icons": '}, (Slice("svg", ("*.json",), "icons"),))})
    with pytest.raises(TaskFailed, match=r"record 0 \(icons\.json\): JSONDecodeError"):
        extract.body(out(), made, 1, 1)


def test_raw_artifact_that_is_gone_is_named(out, tmp_path):
    with pytest.raises(Exception, match=r"manifest\.json"):
        extract.body(out(), Raw.at(str(tmp_path / "gone"), archives=1, size_bytes=1))
