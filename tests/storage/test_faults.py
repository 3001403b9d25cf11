"""Stores that lose answers, break off, keep silent or ignore conditions: one winner, bounded time."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from lmlab.core.errors import StorageError
from lmlab.storage import Path, probe
from services.fault_proxy import Faults
from services.places import declare_root

TOTAL_S, BUSY_S = 1.0, 0.9
"""The limit, and what a busy machine may need beyond it."""
LIMITS = f"[limits]\nconnect_s = 0.4\nread_s = 0.4\ntotal_s = {TOTAL_S}\ntries = 4\n"


@pytest.fixture(params=["s3", "gcs"])
def impatient_root(request, tmp_path, monkeypatch, fault_proxy) -> tuple[Path, Faults]:
    """A remote root behind a fault proxy, with limits of a second."""
    faults = fault_proxy(request.getfixturevalue(f"{request.param}_endpoint"))
    return declare_root(request.param, faults.address, tmp_path, monkeypatch, LIMITS), faults


def operations(root: Path) -> dict[str, object]:
    """One call of each kind of request."""
    return {
        "read": (root / "kept").read_bytes,
        "range": lambda: (root / "kept").read_range(0, 10),
        "stat": (root / "kept").stat,
        "write": lambda: (root / "new").write_bytes(b"1"),
        "create": lambda: (root / "claim").create_bytes(b"1"),
        "list": root.list,
        "walk": root.walk,
        "remove": (root / "new").remove,
        "copy": lambda: (root / "kept").copy_to(root / "copy"),
    }


@pytest.mark.parametrize("every", [2, 3])
def test_lost_answers_to_create_still_give_exactly_one_winner(faulty_root, every):
    root, faults = faulty_root
    faults.set({"do": "drop", "method": "PUT", "every": every})
    for number in range(6):
        path = root / f"claim-{number}"
        with ThreadPoolExecutor(5) as pool:
            won = list(
                pool.map(lambda owner, path=path: (owner, path.create_bytes(str(owner).encode())), range(5))
            )
        winners = [str(owner).encode() for owner, is_won in won if is_won]
        assert winners == [path.read_bytes()]


def test_the_creator_of_equal_content_is_told_apart(faulty_root):
    root, faults = faulty_root
    faults.set({"do": "drop", "method": "PUT", "every": 1, "times": 1})
    assert (root / "same").create_bytes(b"same")
    faults.set({"do": "refuse", "method": "PUT", "every": 1, "times": 1})
    assert not (root / "same").create_bytes(b"same")


def test_a_won_or_lost_race_costs_one_request(faulty_root):
    root, faults = faulty_root
    faults.set()
    assert (root / "claim").create_bytes(b"1")
    assert not (root / "claim").create_bytes(b"2")
    assert [method for method, _ in faults.seen()] == ["PUT", "PUT"]


@pytest.mark.parametrize("fault", [{"do": "drop"}, {"do": "refuse"}, {"do": "status", "code": 503}])
def test_what_fails_once_is_tried_again(faulty_root, fault):
    root, faults = faulty_root
    (root / "kept").write_bytes(b"x" * 1000)
    calls = operations(root)
    for name in ("read", "write", "create", "list", "remove"):
        faults.set({**fault, "times": 1})
        calls[name]()
        assert len(faults.seen()) > 1, name


def test_reading_in_order_asks_for_more_each_time_and_elsewhere_for_what_is_wanted(faulty_root):
    root, faults = faulty_root
    content = np.arange(5 << 20, dtype=np.uint32).tobytes()
    (root / "large").write_bytes(content)
    with (root / "large").open() as file:
        faults.set()
        assert b"".join(iter(lambda: file.read(100_000), b"")) == content
        assert len(faults.seen()) == 5
        faults.set()
        file.seek(12_345_678)
        assert file.read(100) == content[12_345_678:12_345_778]
        assert len(faults.seen()) == 1


def test_a_conflict_between_writers_is_no_lost_race(faulty_root):
    root, faults = faulty_root
    faults.set({"do": "status", "code": 409, "method": "PUT", "times": 1})
    assert (root / "claim").create_bytes(b"1")
    assert (root / "claim").read_bytes() == b"1"


@pytest.mark.parametrize("how", ["read_bytes", "chunks", "open", "read_range", "copy_to"])
def test_a_body_that_breaks_off_is_never_a_short_success(faulty_root, how, tmp_path):
    root, faults = faulty_root
    (root / "kept").write_bytes(b"x" * 100_000)
    target = Path(tmp_path / "copy")
    calls = {
        "read_bytes": (root / "kept").read_bytes,
        "chunks": lambda: b"".join((root / "kept").chunks()),
        "open": lambda: (root / "kept").open().read(),
        "read_range": lambda: (root / "kept").read_range(0, 100_000),
        "copy_to": lambda: (root / "kept").copy_to(target),
    }
    faults.set({"do": "truncate", "method": "GET"})
    with pytest.raises(StorageError, match=r"kept could not be read"):
        calls[how]()
    assert not target.exists()
    faults.set({"do": "truncate", "method": "GET", "times": 1})
    assert calls[how]() in (b"x" * 100_000, None)


@pytest.mark.parametrize("silence", ["withhold", "headers"])
def test_a_silent_store_is_an_error_within_the_total(impatient_root, silence):
    root, faults = impatient_root
    (root / "kept").write_bytes(b"x" * 1000)

    def timed(call) -> tuple[float, str]:
        began = time.monotonic()
        try:
            call()
        except StorageError as error:
            return time.monotonic() - began, str(error)
        return time.monotonic() - began, ""

    faults.set({"do": silence})
    calls = operations(root)
    with ThreadPoolExecutor(len(calls)) as pool:
        for name, (took, said) in zip(calls, pool.map(timed, calls.values()), strict=True):
            assert took < TOTAL_S + BUSY_S, name
            # Some answers end with their head: these need no body to be complete.
            assert said.startswith(str(root)) or silence == "headers", name
            assert "\n" not in said


def test_streamed_writes_to_a_silent_store_end_within_the_total_and_leave_nothing(impatient_root):
    root, faults = impatient_root
    faults.set({"do": "withhold", "method": "POST", "path": "uploadId="})
    began = time.monotonic()
    with pytest.raises(StorageError, match="kept silent too long"), (root / "stream").open_writer() as file:
        file.write(b"x" * (17 << 20))
    assert time.monotonic() - began < TOTAL_S + BUSY_S
    faults.set()
    assert root.walk() == []


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_server_that_accepts_and_never_answers_is_an_error_within_the_total(kind, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        root = declare_root(kind, address, tmp_path, monkeypatch, LIMITS)
        began = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            calls = (root.list, (root / "x").read_bytes, lambda: (root / "x").create_bytes(b""))
            for answer in [pool.submit(call) for call in calls]:
                with pytest.raises(StorageError, match="kept silent too long"):
                    answer.result()
        assert time.monotonic() - began < TOTAL_S + BUSY_S


@pytest.fixture
def forgetful():
    """A store that takes every write and ignores If-None-Match, as some do."""
    kept: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200)

        def do_DELETE(self) -> None:
            kept.pop(self.path, None)
            self.answer(204)

        def do_POST(self) -> None:
            keys = re.findall(rb"<Key>.*?</Key>", self.rfile.read(int(self.headers["Content-Length"])))
            deleted = b"".join(b"<Deleted>%s</Deleted>" % key for key in keys)
            self.answer(200, b"<DeleteResult>%s</DeleteResult>" % deleted)

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_store_that_ignores_the_condition_is_refused(forgetful, kind, tmp_path, monkeypatch):
    root = declare_root(kind, forgetful, tmp_path, monkeypatch, LIMITS)
    with pytest.raises(StorageError, match="lets a second writer create a file that is already there"):
        probe(root)


def test_the_probe_passes_real_stores_and_leaves_nothing(any_root):
    probe(any_root)
    assert any_root.walk() == []
