"""One behaviour on local disks, S3 and GCS: names, ranges, streams, globs, pages, copies, writes once."""

import gzip
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lmlab.core.errors import ConfigError, StorageError
from lmlab.storage import Path, tree
from services.places import declare_root

ODD_NAMES = (
    "with space",
    "ünï",
    "50%",
    "a%2Fb",
    "#1",
    "q?x=1&y",
    "plus+",
    "[x]",
    "{y}",
    "~tilde",
    "back\\slash",
)


def test_odd_names_come_back_as_they_were_written(any_root):
    for number, name in enumerate(ODD_NAMES):
        (any_root / name / f"{name}.txt").write_text(str(number))
    found = {path.relative_to(any_root): path.read_text() for path in any_root.walk()}
    assert found == {f"{name}/{name}.txt": str(number) for number, name in enumerate(ODD_NAMES)}
    assert [path.name for path in any_root.list()] == sorted(ODD_NAMES)


def test_ranges_end_with_the_file(any_root):
    path = any_root / "digits"
    path.write_bytes(b"0123456789")
    assert path.read_range(2, 3) == b"234"
    assert path.read_range(8, 100) == b"89"
    assert [path.read_range(10, 5), path.read_range(99, 5), path.read_range(3, 0)] == [b"", b"", b""]
    with pytest.raises(StorageError, match="does not exist"):
        (any_root / "none").read_range(0, 1)


def test_an_empty_file_is_a_file(any_root):
    path = any_root / "empty"
    path.write_bytes(b"")
    assert (path.read_bytes(), list(path.chunks()), path.read_range(0, 9), path.size()) == (b"", [], b"", 0)
    with path.open() as file:
        assert file.read() == b""
    with (any_root / "written").open_writer():
        pass
    assert [(p.name, s.size_bytes) for p, s in any_root.walk_stats()] == [("empty", 0), ("written", 0)]


def test_a_listing_tells_what_each_file_would(any_root):
    for name in ("b", "a/deep/x", "a/y"):
        (any_root / name).write_text(name)
    listed = any_root.walk_stats()
    assert [(path.relative_to(any_root), stat.size_bytes) for path, stat in listed] == [
        ("a/deep/x", 8),
        ("a/y", 3),
        ("b", 1),
    ]
    for path, stat in listed:
        assert (stat.size_bytes, stat.etag) == (path.stat().size_bytes, path.stat().etag)
        # Headers have whole seconds, listings have more.
        assert stat.modified == pytest.approx(path.stat().modified, abs=1.0)
    before = (any_root / "b").stat().etag
    (any_root / "b").write_text("other")
    assert (any_root / "b").stat().etag != before


def test_python_libraries_read_and_write_through_file_objects(any_root):
    table = pa.table({"id": np.arange(50_000), "text": [f"row {i}" for i in range(50_000)]})
    with (any_root / "t.parquet").open_writer() as file:
        pq.write_table(table, file, row_group_size=10_000)
    with (any_root / "t.parquet").open() as file, pq.ParquetFile(file) as parquet:
        assert parquet.read_row_group(3).column("id").to_pylist() == list(range(30_000, 40_000))
        assert parquet.read().equals(table)
    with (
        (any_root / "t.zst").open_writer() as file,
        zstandard.ZstdCompressor().stream_writer(file, closefd=False) as z,
    ):
        z.write(b"line\n" * 100_000)
    with (any_root / "t.zst").open() as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file)).readlines()
    assert len(lines) == 100_000
    with (any_root / "t.gz").open_writer() as file, gzip.GzipFile(fileobj=file, mode="wb") as packed:
        packed.write(b"packed")
    with (any_root / "t.gz").open() as file, gzip.GzipFile(fileobj=file) as packed:
        assert packed.read() == b"packed"


def test_only_the_asked_part_of_a_file_is_fetched(any_root):
    path = any_root / "large"
    path.write_bytes(bytes(3 << 20) + b"end")
    with path.open() as file:
        assert file.seek(-3, io.SEEK_END) == 3 << 20
        assert file.read() == b"end"
        file.seek(5)
        assert (file.read(2), file.tell()) == (b"\0\0", 7)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error_not_a_mixture(any_root):
    path = any_root / "file"
    path.write_bytes(b"1" * (3 << 20))
    with path.open() as file:
        assert file.read(10) == b"1" * 10
        path.write_bytes(b"2" * (3 << 20))
        if any_root.is_local:
            assert set(file.read()) == {ord("1")}
        else:
            with pytest.raises(StorageError, match="was replaced while it was being read"):
                file.read()


@pytest.mark.parametrize("fails", [False, True])
def test_a_streamed_file_of_many_parts_is_visible_only_when_whole(any_root, fails):
    path, block = any_root / "streamed", b"0123456789abcdef" * 65536

    def stream() -> None:
        with path.open_writer() as file:
            for _ in range(40):
                assert file.write(block) == len(block)
            assert not path.exists()
            assert any_root.walk() == []
            if fails:
                raise KeyError("interrupted")

    if fails:
        with pytest.raises(KeyError, match="interrupted"):
            stream()
        assert any_root.walk() == []
    else:
        stream()
        assert path.size() == 40 * len(block)
        assert path.read_range(39 << 20, 16) == block[:16]


def test_an_error_of_the_callers_own_file_is_not_blamed_on_the_target(any_root, tmp_path):
    with pytest.raises(FileNotFoundError), (any_root / "x").open_writer():
        (tmp_path / "missing").read_bytes()
    with pytest.raises(FileNotFoundError), (any_root / "x").writer():
        (tmp_path / "missing").read_bytes()
    assert any_root.walk() == []


def test_a_large_draft_is_sent_in_parts(any_root):
    content = np.random.default_rng(0).bytes(12_000_001)
    with (any_root / "draft").writer() as draft:
        draft.write_bytes(content)
    assert (any_root / "draft").read_bytes() == content
    assert b"".join((any_root / "draft").chunks()) == content


def test_globs_find_what_a_shell_finds(any_root):
    for name in (
        "a/1.json",
        "a/2.json",
        "b/1.txt",
        "b/c/3.json",
        ".hidden/4.json",
        "b/.artifact.json",
        "top.json",
    ):
        (any_root / name).write_text("")

    def glob(pattern: str) -> list[str]:
        return [path.relative_to(any_root) for path in any_root.glob(pattern)]

    assert glob("*") == ["a", "b", "top.json"]
    assert glob("*/*.json") == ["a/1.json", "a/2.json"]
    assert glob("a/{1,9}.json") == ["a/1.json"]
    assert glob("{a,b}/1.{json,txt}") == ["a/1.json", "b/1.txt"]
    assert glob("**/*.json") == ["a/1.json", "a/2.json", "b/c/3.json", "top.json"]
    assert glob("b/**") == ["b/1.txt", "b/c/3.json"]
    assert glob("?/[12].json") == ["a/1.json", "a/2.json"]
    assert glob(".hidden/*") == [".hidden/4.json"]
    assert glob("b/.*") == ["b/.artifact.json"]
    assert (glob("a/1.json"), glob("none/*"), glob("a/none")) == (["a/1.json"], [], [])
    with pytest.raises(ConfigError, match="would lead outside"):
        glob("../*")


def test_removing_what_is_not_there_is_no_error(any_root, tmp_path):
    (any_root / "none").remove_tree()
    (any_root / "none").remove()
    (any_root / "file").write_bytes(b"1")
    (any_root / "file").remove_tree()
    assert any_root.walk() == []
    bucket = Path(f"memory://{tmp_path.name}")
    (bucket / "x").write_bytes(b"1")
    bucket.remove_tree()
    bucket.remove_tree()
    assert bucket.walk() == []


def test_files_are_copied_and_renamed(any_root):
    first, second, third = any_root / "1", any_root / "sub/2", any_root / "3 #%"
    first.write_bytes(b"content")
    first.copy_to(second)
    second.rename(third)
    assert (first.read_bytes(), second.exists(), third.read_bytes()) == (b"content", False, b"content")
    third.rename(third)
    assert third.read_bytes() == b"content"
    with pytest.raises(StorageError, match="does not exist"):
        second.copy_to(first)
    assert first.read_bytes() == b"content"


def test_files_are_copied_between_stores(any_root, tmp_path):
    content = np.random.default_rng(1).bytes(3_000_000)
    here, memory = Path(tmp_path / "here"), Path(f"memory://{tmp_path.name}/x")
    here.write_bytes(content)
    here.copy_to(any_root / "up")
    (any_root / "up").copy_to(memory)
    memory.copy_to(any_root / "again")
    (any_root / "again").copy_to(Path(tmp_path / "back"))
    assert Path(tmp_path / "back").read_bytes() == content


def test_more_files_than_a_page_are_listed_and_removed_in_bulk(
    ministack_endpoint, gcs_endpoint, tmp_path, monkeypatch
):
    for kind, endpoint in (("gcs", gcs_endpoint), ("ministack", ministack_endpoint)):
        root = declare_root(kind, endpoint, tmp_path, monkeypatch)
        count = 1500
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i, root=root: (root / "many" / f"{i:04}").write_bytes(b""), range(count)))
        (root / "manyfold").write_bytes(b"")
        assert [path.name for path in (root / "many").list()] == [f"{i:04}" for i in range(count)]
        assert len((root / "many").walk_stats()) == count
        (root / "many").remove_tree()
        assert [path.name for path in root.walk()] == ["manyfold"]


@pytest.mark.parametrize("any_root", ["s3", "gcs"], indirect=True)
def test_folder_markers_of_other_programs_are_no_files(any_root, request):
    import obstore

    from lmlab.storage import stores

    (any_root / "folder" / "x").write_bytes(b"1")
    obstore.put(stores.open_store(any_root.scheme, any_root.bucket), (any_root / "folder").key, b"")
    assert any_root.walk() == [any_root / "folder" / "x"]
    assert any_root.list() == [any_root / "folder"]
    assert (any_root / "folder").list() == [any_root / "folder" / "x"]


def test_of_many_creators_one_wins_and_reads_its_own(any_root):
    won, barrier = [], threading.Barrier(12)

    def create(number: int) -> None:
        barrier.wait()
        if (any_root / "claim").create_bytes(str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in won] == [(any_root / "claim").read_bytes()]
    assert not (any_root / "claim").create_bytes((any_root / "claim").read_bytes())


def test_a_tree_is_hashed_file_by_file(any_root):
    for name in ("a", "b/c"):
        (any_root / name).write_text(name)
    (any_root / ".artifact.json").write_text("{}")
    listing = tree.digests(any_root)
    assert {name: size for name, (size, _) in listing.items()} == {"a": 1, "b/c": 3}
    assert listing["a"][1] == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


def read_elsewhere(path: Path) -> bytes:
    return path.read_bytes()


def test_paths_travel_to_spawned_processes_which_open_their_own_stores(any_root):
    path = any_root / "a b"
    path.write_bytes(b"hello")
    assert pickle.loads(pickle.dumps(path)) == path
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read_elsewhere, (path,)) == b"hello"


FORKS = """
import os, sys
from lmlab.storage import Path

path = Path(sys.argv[1])
path.write_bytes(b"1")
if os.fork() == 0:
    path.read_bytes()
os.wait()
"""


@pytest.mark.parametrize("any_root", ["s3", "gcs"], indirect=True)
def test_a_forked_process_is_told_to_spawn_instead_of_hanging(any_root):
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(any_root / "x")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 'multiprocessing.get_context("spawn")' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "address", ["s3://b/a/../c", "gs://b/a//c", "s3://b/./x", "s3://b/a\nb", "s3://", "s3:///x"]
)
def test_names_that_stores_refuse_or_change_are_refused_at_once(address):
    with pytest.raises(ConfigError):
        Path(address)


@pytest.mark.parametrize("any_root", ["s3", "gcs"], indirect=True)
def test_a_missing_bucket_is_named(any_root):
    other = Path(f"{any_root.scheme}://no-such-bucket/x")
    for act in (other.list, lambda: other.write_bytes(b""), lambda: other.create_bytes(b"")):
        with pytest.raises(StorageError, match="no bucket no-such-bucket"):
            act()
