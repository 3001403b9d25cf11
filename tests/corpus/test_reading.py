"""Sources of every format become documents, whoever reads which part of them; poison records are named."""

import bz2
import csv
import gzip
import io
import json
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warc_files
import zstandard
from rendered_files import GOLDENS

from lmlab.core.config import encode
from lmlab.core.errors import InputError
from lmlab.corpus import Documents, Raw, Slice, extract, fan_out, reading
from lmlab.corpus.extracting import extract_all
from lmlab.corpus.reading import read, render, spans
from lmlab.corpus.schema import parts_of
from lmlab.dataflow import TaskFailed
from lmlab.dataflow.runner import open_runner
from lmlab.storage import Path, write_json

ROWS = [{"id": f"d{i}", "text": f"Text number {i}."} for i in range(20)]
DOCUMENT = (Slice("web", ("*",), "document"),)


def lines(rows=ROWS):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(rows=ROWS, delimiter=","):
    return "".join(
        f"{row['id']}{delimiter}{row['text']}\r\n" for row in ({"id": "id", "text": "text"}, *rows)
    ).encode()


def parquet(rows=ROWS, row_group_size=5):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=row_group_size)
    return file.getvalue()


FORMATS = {
    "a.jsonl": lines(),
    "a.jsonl.gz": gzip.compress(lines()),
    "a.jsonl.zst": zstandard.compress(lines()[:300]) + zstandard.compress(lines()[300:]),
    "a.json": json.dumps(ROWS).encode(),
    "lines.json": b"\xef\xbb\xbf" + lines(),
    "indented.json": json.dumps(ROWS, indent=1).encode(),
    "a.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "a.csv": b"\xef\xbb\xbf" + as_csv(),
    "a.tsv.gz": gzip.compress(as_csv(delimiter="\t")),
    "a.jsonl.bz2": bz2.compress(lines()[:300]) + bz2.compress(lines()[300:]),
    "a.parquet": parquet(),
}


def texts(path, slices=DOCUMENT, span=None):
    return [found.text for record in read(Path(path), slices, span) for found in render(record)]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_same_in_every_format_alone_and_in_an_archive(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    wanted = [row["text"] for row in ROWS]
    assert texts(tmp_path / name) == wanted
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"deep/{name}", FORMATS[name])
    assert texts(tmp_path / "a.zip") == wanted


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"a.jsonl", "lines.json", "a.csv"}))
def test_file_that_is_cut_off_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name][: len(FORMATS[name]) - 20])
    with pytest.raises(InputError, match=rf"{name} .*can't be read"):
        texts(tmp_path / name)


def test_quoted_fields_may_hold_lines_and_more_than_csv_allows_by_default(tmp_path):
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f'id,text\n1,"two\nlines"\n2,{long}\n')
    assert texts(tmp_path / "a.csv") == ["two\nlines", long]


def test_ranges_of_large_files_hold_every_record_once(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SPLIT_BYTES", 200)
    (tmp_path / "a.parquet").write_bytes(parquet())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for row in ROWS:
            archive.writestr(f"{row['id']}.json", json.dumps(row) + " " * 100)
    for name in ("a.parquet", "a.zip"):
        ranges = spans(Path(tmp_path / name))
        assert len(ranges) > 2
        found = [text for span in ranges for text in texts(tmp_path / name, span=span)]
        assert found == [row["text"] for row in ROWS]
        names = [r.name for span in ranges for r in read(Path(tmp_path / name), DOCUMENT, span)]
        assert len(set(names)) == len(ROWS)


def test_groups_are_rendered_together(tmp_path):
    (tmp_path / "m.tsv").write_text("smiles\tname\n" + "".join(f"C{i}\tn{i}\n" for i in range(150)))
    found = texts(tmp_path / "m.tsv", (Slice("chem", ("*",), "molecules"),))
    assert [text.count("\n") for text in found] == [100, 50]
    (tmp_path / "CID-SMILES.gz").write_bytes(gzip.compress(b"1\tCCO\n2\tC\n"))
    assert texts(tmp_path / "CID-SMILES.gz", (Slice("chem", ("*",), "molecules"),)) == [
        "CCO\tcid=1\nC\tcid=2\n"
    ]


@pytest.fixture
def source(tmp_path):
    """Make a raw artifact of files as they are: {file: (bytes, slices)}."""

    def make(files):
        entries = []
        for name, (data, slices) in files.items():
            path = tmp_path / "raw" / "archives" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            about = {
                "file": name,
                "package": name.partition("/")[0],
                "license": "CC0-1.0",
                "bytes": len(data),
            }
            entries.append({**about, "slices": [encode(piece) for piece in slices]})
        write_json(Path(tmp_path / "raw" / "manifest.json"), {"archives": entries})
        return Raw.at(str(tmp_path / "raw"), archives=len(entries), size_bytes=0).path

    return make


def extracted(raw, out, workers=1, opened=open_runner, **how):
    with opened(workers) as runner:
        return extract_all(raw, out, 1, runner, lambda *_: None, **how), runner


def test_documents_of_rows_say_where_they_stood_and_keep_what_the_row_says(source, tmp_path, rows_of):
    rows = [{"id": "x", "text": "One.", "metadata": {"license": "MIT", "url": "u"}}, {"text": "Two."}]
    raw = source(
        {"hub/data/train.jsonl": (lines(rows), (Slice("web", ("data/*",), "document", language="en"),))}
    )
    extracted(raw, Path(tmp_path / "out"))
    by_text = {row["text"]: row for row in rows_of(Path(tmp_path / "out"))}
    assert json.loads(by_text["One."]["meta"]) == {
        "domain": "web", "language": "en", "license": "MIT", "package": "hub", "path": "data/train.jsonl:1#x",
        "url": "u",
    }  # fmt: skip
    assert by_text["Two."]["source_id"] == "hub/data/train.jsonl:2"
    assert json.loads(by_text["Two."]["meta"])["license"] == "CC0-1.0"


POISON = lines([{"text": "Good."}, {"text": 7}]) + b'{"text": "cut\n' + lines([{"text": "Fine."}])


@pytest.mark.parametrize("workers", [1, 2])
def test_poison_record_is_named_with_its_file(source, tmp_path, workers):
    raw = source({"bad.jsonl": (POISON, DOCUMENT)})
    with pytest.raises(
        TaskFailed, match=r"record 1 \(bad\.jsonl:2\): ValueError: 'text' is a int, not a str"
    ):
        extracted(raw, Path(tmp_path / "out"), workers)


def test_quarantine_keeps_poison_records_with_their_reasons_and_goes_on(
    source, tmp_path, rows_of, any_runner
):
    raw = source({"bad.jsonl": (POISON, DOCUMENT)})
    stage, runner = extracted(raw, Path(tmp_path / "out"), 2, any_runner, is_quarantine=True)
    assert {row["text"] for row in rows_of(Path(tmp_path / "out"))} == {"Good.", "Fine."}
    rejected = {
        row["text"]: row["reason"] for row in rows_of(Path(tmp_path / "out" / "rejected" / "extract"))
    }
    assert rejected['{"text": 7}'].startswith(
        "unreadable: record 1 (bad.jsonl:2): ValueError: 'text' is a int"
    )
    assert rejected['{"text": "cut'].startswith("unreadable: record 2 (bad.jsonl:3): JSONDecodeError")
    assert stage.dropped == {"unreadable": 2}
    assert runner.counters["quarantined"] == 2


def test_lone_surrogate_is_a_poison_record_not_a_crash(source, tmp_path, rows_of):
    raw = source({"s.jsonl": (b'{"text": "a\\ud800b"}\n{"text": "Good."}\n', DOCUMENT)})
    stage, _ = extracted(raw, Path(tmp_path / "out"), is_quarantine=True)
    assert stage.dropped == {"unreadable": 1}


def test_rejected_conversations_are_counted_by_reason(source, tmp_path):
    data = (GOLDENS / "chat-messages.jsonl").read_bytes()
    stage, _ = extracted(
        source({"c.jsonl": (data, (Slice("chat", ("*",), "chat"),))}), Path(tmp_path / "out")
    )
    assert stage.documents_out == 2
    assert stage.dropped == {
        "stalled tool call": 1, "repeated tool call": 1, "undefined tool": 1, "tool call without a reply": 1,
        "late system message": 1, "no question and answer": 1,
    }  # fmt: skip


def massive():
    """The archive of MASSIVE in small: a file of rows for each locale."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for locale in ("de-DE", "en-US", "ja-JP"):
            rows = [
                {"id": str(i), "locale": locale, "intent": "alarm_set", "utt": f"{locale} {i}",
                 "annot_utt": f"[time : {locale}] {i}"}
                for i in range(4)
            ]  # fmt: skip
            member = tarfile.TarInfo(f"1.1/data/{locale}.jsonl")
            member.size = len(lines(rows))
            archive.addfile(member, io.BytesIO(lines(rows)))
    return file.getvalue()


def test_massive_has_one_output_for_each_locale(source, tmp_path, out, rows_of, any_runner):
    raw = source({"massive.tar.gz": (massive(), (Slice("massive", ("*.jsonl",), "massive"),))})
    docs = Documents.at(
        str(tmp_path / "all"), **extract.body(out("all"), Raw.at(raw, archives=1, size_bytes=1), 1).result
    )
    result = fan_out.body(out("by"), docs).result
    assert result["documents"] == docs.documents == 12
    folders = [out("by").path / locale for locale in ("de-DE", "en-US", "ja-JP")]
    assert folders == [path for path in out("by").path.list() if path.is_dir()]
    for folder in folders:
        assert [path.name for path in parts_of(folder)] == [path.name for path in parts_of(docs.path)]
        assert {json.loads(row["meta"])["language"] for row in rows_of(folder)} == {folder.name}
    together = [row for folder in folders for row in rows_of(folder)]
    assert sorted(map(str, together)) == sorted(map(str, rows_of(docs.path)))


def test_fan_out_by_something_that_cannot_name_a_folder_is_refused(source, tmp_path, out):
    extracted(source({"a.jsonl": (lines(), DOCUMENT)}), Path(tmp_path / "all"))
    with pytest.raises(InputError, match=r"path='a.jsonl:.*can't name a folder"):
        fan_out.body(out("by"), Documents.at(str(tmp_path / "all"), documents=20, size_bytes=1), "path", 1)


def test_same_bytes_for_any_number_of_workers_and_ranges(source, tmp_path, monkeypatch):
    raw = source({"a.parquet": (parquet(), DOCUMENT), "b.jsonl": (lines(), DOCUMENT)})
    made = {}
    for name, workers, split in (("one", 1, 1 << 30), ("two", 2, 200)):
        monkeypatch.setattr(reading, "SPLIT_BYTES", split)
        extracted(raw, Path(tmp_path / name), workers)
        found = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        made[name] = {
            path.name: [row["text"] for row in pq.read_table(path).to_pylist()]
            if path.suffix == ".parquet"
            else 0
            for path in found
        }
    assert made["one"] == made["two"]


def test_pages_of_a_crawl_are_documents_and_broken_records_rejected(source, tmp_path, rows_of):
    pages = [
        f"<html lang=de><p>Seite {i} \xfcber Bienen, die lange fliegen.".encode("latin-1") for i in range(3)
    ]
    data = b"".join(
        gzip.compress(
            warc_files.record(warc_files.http(page, "text/html; charset=latin-1"), f"http://a.example/{i}")
        )
        for i, page in enumerate(pages)
    )
    raw = source({"c/x.warc.gz": (data[:-40], (Slice("web", ("*",), "html"),))})
    stage, _ = extracted(raw, Path(tmp_path / "out"))
    rows = sorted(rows_of(Path(tmp_path / "out")), key=lambda row: row["source_id"])
    assert [row["text"].strip() for row in rows] == [
        f"Seite {i} über Bienen, die lange fliegen." for i in (0, 1)
    ]
    assert json.loads(rows[0]["meta"]) | {"title": ""} == {
        "date": warc_files.DATE, "domain": "web", "language": "de", "license": "CC0-1.0", "package": "c",
        "path": "http://a.example/0", "title": "", "url": "http://a.example/0",
    }  # fmt: skip
    assert (stage.documents_in, stage.documents_out) == (3, 2)


def test_sources_are_read_and_documents_written_on_any_store(any_root, rows_of):
    raw = any_root / "raw"
    (raw / "archives" / "a.parquet").write_bytes(parquet())
    (raw / "archives" / "m.tar.gz").write_bytes(massive())
    entries = [
        {
            "file": file,
            "package": file,
            "license": "MIT",
            "bytes": 1,
            "slices": [encode(Slice("d", ("*",), renderer))],
        }
        for file, renderer in (("a.parquet", "document"), ("m.tar.gz", "massive"))
    ]
    write_json(raw / "manifest.json", {"archives": entries})
    stage, _ = extracted(raw, any_root / "out")
    assert stage.documents_out == len(rows_of(any_root / "out")) == 32


@pytest.mark.parametrize(
    ("name", "renderer", "said"),
    [("bomb.1.gz", "man", r"bomb.* holds more than 4.0 MiB to be read at once\. Split it"),
     ("bomb.jsonl.gz", "document", r"bomb.* can't be read .*a line is longer than 4,194,304 bytes")],
)  # fmt: skip
def test_what_would_fill_the_memory_is_refused(tmp_path, monkeypatch, name, renderer, said):
    monkeypatch.setattr(reading, "MAX_MEMBER_BYTES", 4 << 20)
    (tmp_path / name).write_bytes(gzip.compress(b" " * (8 << 20)))
    with pytest.raises(InputError, match=said):
        texts(tmp_path / name, (Slice("d", ("*",), renderer),))


def run_of_two_jobs():
    """The logs of a GitHub Actions run, as `tar -C run .` packs them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in ("./0_build.txt", "./1_test.txt", "./build/1_checkout.txt"):
            member = tarfile.TarInfo(name)
            data = f"2024-01-01T00:00:00.0000000Z {name} ran on 10.1.2.3\n".encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def test_jobs_of_a_run_are_read_alone_and_in_an_archive_of_runs(tmp_path):
    (tmp_path / "17.tar.gz").write_bytes(run_of_two_jobs())
    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        archive.writestr("owner/17.tar.gz", run_of_two_jobs())
    wanted = ["./0_build.txt ran on host1\n", "./1_test.txt ran on host1\n"]
    slices = (Slice("logs", ("*",), "ghalogs"),)
    assert texts(tmp_path / "17.tar.gz", slices) == [*wanted, ""]
    assert texts(tmp_path / "runs.zip", slices) == wanted


def test_run_that_is_cut_off_is_a_poison_record_said_in_one_line(source, tmp_path, rows_of):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("owner/16.tar.gz", run_of_two_jobs()[:-20])
        archive.writestr("owner/17.tar.gz", run_of_two_jobs())
    raw = source({"runs.zip": (packed.getvalue(), (Slice("logs", ("*",), "ghalogs"),))})
    stage, _ = extracted(raw, Path(tmp_path / "out"), is_quarantine=True)
    assert stage.dropped == {"unreadable": 1}
    (row,) = rows_of(Path(tmp_path / "out" / "rejected" / "extract"))
    assert "owner/16.tar.gz" in row["reason"]
    assert "\n" not in row["reason"]


def test_large_zip_that_is_none_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SPLIT_BYTES", 10)
    (tmp_path / "a.zip").write_bytes(b"<html>Too many requests</html>")
    assert spans(Path(tmp_path / "a.zip")) == [None]
    with pytest.raises(InputError, match=r"a\.zip .* is truncated or corrupt"):
        texts(tmp_path / "a.zip")


@pytest.mark.parametrize("at", ["alone", "in a process that read rows before"])
def test_long_cells_of_a_table_are_cut_not_refused(tmp_path, at):
    csv.field_size_limit(131_072 if at == "alone" else 1 << 28)
    (tmp_path / "a.csv").write_text("a,b\n1," + "x" * 200_000 + "\n")
    (found,) = texts(tmp_path / "a.csv", (Slice("t", ("*",), "table"),))
    assert found.count("x") == 500


@pytest.mark.timeout(10)
def test_book_whose_pages_all_go_on_is_read_in_linear_time(tmp_path):
    rows = [{"item_id": 1, "page_num": i, "text": "goes on " * 300 + "end-"} for i in range(3000)]
    (tmp_path / "b.jsonl").write_bytes(lines(rows))
    (found,) = texts(tmp_path / "b.jsonl", (Slice("b", ("*",), "book"),))
    assert found.count("endgoes on") == 2999
