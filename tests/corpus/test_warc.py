"""WARC files as crawlers leave them, whole and broken."""

import contextlib
import gzip
import time
import zlib

import pytest
from fastwarc.stream_io import BrotliWriter
from hypothesis import HealthCheck, given, settings, strategies as st
from warc_files import DATE, PACK, http, packed_by, record, sha1

from lmlab.core.errors import InputError
from lmlab.corpus import warc
from lmlab.corpus.warc import WebRecord, records
from lmlab.dataflow.counters import collecting
from lmlab.storage import Path

PAGE = "<html><body><p>voilà, a page</p></body></html>".encode()


@pytest.fixture
def read(tmp_path):
    """The records of a WARC file that is made of these."""

    def read(*parts: bytes, pack="warc") -> list[WebRecord]:
        path = tmp_path / f"a.{pack}"
        path.write_bytes(b"".join(PACK[pack](part) for part in parts))
        return list(records(Path(path)))

    return read


def page(number: int, body: bytes = PAGE, **fields: str) -> bytes:
    return record(http(body, **fields), f"http://a.example/{number}")


def told(found):
    return [(item.url.rpartition("/")[2], item.reason.partition(":")[0]) for item in found]


@pytest.mark.parametrize("pack", PACK)
def test_pages_are_read_with_address_date_and_charset(read, pack):
    first, second = read(page(1), page(2, kind="text/html"), pack=pack)
    assert first == WebRecord("http://a.example/1", DATE, "utf-8", PAGE)
    assert second.charset is None


def test_what_is_no_page_is_counted(read):
    tally = {}
    with collecting(tally):
        found = read(
            record(b"software: x\r\n", kind="warcinfo"),
            record(b"GET / HTTP/1.1\r\n\r\n", kind="request"),
            record(http(b""), kind="revisit"),
            record(b"fetchTimeMs: 1", kind="metadata"),
            record(http(b"gone", status="404 Not Found")),
            record(http(b"GIF89a", kind="image/gif")),
            record(http(record(http(PAGE)), kind="application/warc")),
            page(1),
        )
    assert told(found) == [("1", "")]
    assert {name: n for name, (_, n, _) in tally.items()} == {
        "warc warcinfo, no page": 1, "warc request, no page": 1, "warc revisit, no page": 1,
        "warc metadata, no page": 1, "warc response, no page": 3, "warc pages": 1,
    }  # fmt: skip


ENCODINGS = {
    "gzip": gzip.compress(PAGE),
    "x-gzip": gzip.compress(PAGE),
    "deflate": zlib.compress(PAGE),
    "deflate ": zlib.compress(PAGE)[2:-4],
    "br": packed_by(BrotliWriter)(PAGE),
    "zstd": PACK["warc.zst"](PAGE),
    "gzip, br": packed_by(BrotliWriter)(gzip.compress(PAGE)),
    "identity": PAGE,
    "gzip  ": PAGE,  # The crawler took it off, and left the header.
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_content_encodings_are_taken_off(read, encoding):
    (found,) = read(page(1, ENCODINGS[encoding], Content_Encoding=encoding))
    assert (found.html, found.reason) == (PAGE, "")


def test_chunks_are_joined(read):
    body = b"%x\r\n%b\r\n5;x=y\r\n%b\r\n0\r\n\r\n" % (len(PAGE) - 5, PAGE[:-5], PAGE[-5:])
    encoded = b"%x\r\n%b\r\n0\r\n\r\n" % (len(gzip.compress(PAGE)), gzip.compress(PAGE))
    found = read(
        page(1, body, Transfer_Encoding="chunked"),
        page(2, encoded, Transfer_Encoding="chunked", Content_Encoding="gzip"),
        page(3, PAGE, Transfer_Encoding="chunked"),  # The crawler joined them.
        page(4, body[:-20], Transfer_Encoding="chunked"),
    )
    assert [item.html for item in found[:3]] == [PAGE] * 3
    assert told(found[3:]) == [("4", "broken chunks")]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_page_that_unpacks_to_gigabytes_is_broken(read, monkeypatch, encoding):
    monkeypatch.setattr(warc, "MAX_PAGE_BYTES", 1 << 20)
    pack = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": packed_by(BrotliWriter),
        "zstd": PACK["warc.zst"],
    }
    found = read(page(1, pack[encoding](bytes(8 << 20)), Content_Encoding=encoding), page(2))
    assert told(found) == [("1", "bomb"), ("2", "")]


def test_unknown_or_cut_encoding_is_broken(read):
    found = read(
        page(1, b"\x00\x01", Content_Encoding="compress"),
        page(2, gzip.compress(PAGE)[:-12], Content_Encoding="gzip"),
        page(3),
    )
    assert told(found) == [("1", "unknown content encoding"), ("2", "cut off"), ("3", "")]


def test_digests_are_checked(read):
    content = http(PAGE)
    joined = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE)
    found = read(
        record(content, "http://a.example/1", WARC_Payload_Digest=sha1(PAGE)),
        record(content, "http://a.example/2", WARC_Block_Digest=sha1(content)),
        record(content, "http://a.example/3", WARC_Payload_Digest=sha1(PAGE + b" ")),
        record(
            http(joined, Transfer_Encoding="chunked"), "http://a.example/4", WARC_Payload_Digest=sha1(PAGE)
        ),
        record(content, "http://a.example/5", WARC_Payload_Digest="sha9:WHAT"),
    )
    assert told(found) == [("1", ""), ("2", ""), ("3", "wrong digest"), ("4", ""), ("5", "")]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("length", [80, 120, 10 << 30, -5])
def test_record_of_wrong_length_costs_no_other(read, pack, length):
    wrong = record(http(PAGE), "http://a.example/2", length=length)
    found = read(page(1), wrong, page(3), page(4), pack=pack)
    assert [item for item in told(found) if not item[1]] == [("1", ""), ("3", ""), ("4", "")]
    assert [url for url, reason in told(found) if reason] == ["2"]


@pytest.mark.parametrize("pack", PACK)
def test_rubbish_between_records_costs_at_most_the_one_before_it(read, pack):
    sure = record(http(PAGE), "http://a.example/1", WARC_Payload_Digest=sha1(PAGE))
    assert told(read(sure, b"rubbish\r\n" * 9, page(2), pack=pack)) == [
        ("1", ""),
        ("1", "no record follows"),
        ("2", ""),
    ]
    assert told(read(page(1), b"rubbish\r\n" * 9, page(2), pack=pack)) == [
        ("1", "no record follows"),
        ("2", ""),
    ]


def test_member_with_a_flipped_byte_costs_at_most_the_one_before_it(tmp_path):
    packed = [bytearray(gzip.compress(page(n, PAGE + bytes(range(256)) * 9))) for n in range(5)]
    packed[2][len(packed[2]) // 2] ^= 0x55
    (tmp_path / "a.warc.gz").write_bytes(b"".join(packed))
    found = told(records(Path(tmp_path / "a.warc.gz")))
    assert {url for url, reason in found if not reason} >= {"0", "3", "4"}
    assert {url for url, reason in found if not reason} <= {"0", "1", "3", "4"}
    assert [reason for _, reason in found if reason]


@pytest.mark.parametrize("pack", PACK)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.01, 1, exclude_max=True))
def test_cut_file_gives_whole_pages_and_at_most_one_broken_record(tmp_path, pack, share):
    whole = b"".join(PACK[pack](page(n, PAGE + b"%d" % n)) for n in range(5))
    cut = whole[: int(len(whole) * share)]
    (tmp_path / "cut").write_bytes(cut)
    found: list[WebRecord] = []
    with contextlib.suppress(InputError):  # Less than the header of the first record.
        found = list(records(Path(tmp_path / "cut")))
    good = [item for item in found if not item.reason]
    assert [item.html for item in good] == [PAGE + b"%d" % n for n in range(len(good))]
    assert len(found) - len(good) <= 1
    assert len(good) >= int(5 * share) - 1


@pytest.mark.parametrize("data", [b"", b"<html>" * 100, gzip.compress(b"<html>" * 100)])
def test_what_is_no_warc_is_refused(tmp_path, data):
    (tmp_path / "a.warc.gz").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.warc\.gz .* holds no WARC record"):
        list(records(Path(tmp_path / "a.warc.gz")))


def test_warc_in_a_bucket_is_read_as_one_on_disk(any_root):
    (any_root / "a.warc.gz").write_bytes(b"".join(gzip.compress(page(n)) for n in range(3)))
    assert told(records(any_root / "a.warc.gz")) == [("0", ""), ("1", ""), ("2", "")]


@pytest.mark.parametrize("rubbish", [b"WARC/1.0\r\n", b"WARC/1.0\r\nContent-Length: 5\r\n\r\n"])
def test_file_of_nothing_but_marks_is_given_up_soon(read, rubbish):
    started = time.process_time()
    found = read(page(1), page(2), rubbish * 20_000)
    assert told(found)[0] == ("1", "")
    assert told(found)[-1] == ("", "lost")
    assert time.process_time() - started < 4  # 0.3 s on an idle machine; 6 s if all marks were tried.


def test_response_without_a_header_is_no_page(read):
    assert told(
        read(record(b"\0\1\2", "http://a.example/1"), record(b"", "http://a.example/2"), page(3))
    ) == [("3", "")]


def test_large_record_costs_no_memory(read, monkeypatch):
    monkeypatch.setattr(warc, "MAX_PAGE_BYTES", 1 << 20)
    found = read(page(1, bytes(3 << 20)), page(2), pack="warc.gz")
    assert told(found) == [("1", "too large"), ("2", "")]
