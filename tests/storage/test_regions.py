"""Which region a place and this machine are in."""

import http.server
import threading
import time

import pytest

from lmlab.core.errors import ConfigError
from lmlab.storage import Path, choose_root, regions


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Write the lab's file and use it; no LMLAB_ROOT."""
    monkeypatch.delenv("LMLAB_ROOT")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def write(text: str) -> None:
        file = tmp_path / f"lab-{time.monotonic_ns()}.toml"
        file.write_text(text)
        monkeypatch.setenv("LMLAB_CONFIG", str(file))

    return write


@pytest.fixture
def metadata():
    """A cloud's metadata server on this machine: what it answers by method and path, and after how long."""
    answers: dict[str, str] = {}
    delay_s = [0.0]

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            time.sleep(delay_s[0])
            body = answers.get(f"{self.command} {self.path}")
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        do_GET = do_PUT = answer  # noqa: N815

        def log_message(self, *_):
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    server.answers, server.delay_s = answers, delay_s
    regions.ask_metadata.cache_clear()
    yield server
    regions.ask_metadata.cache_clear()
    server.shutdown()
    server.server_close()


def test_the_longest_declared_place_gives_the_region(declare, tmp_path):
    declare(
        'root = "eu"\n[roots]\neurope-west4 = "eu"\nus-central1 = "s3://us/lmlab"\n'
        '[backends."s3://"]\nlocation = "us-east-1"\n[backends."gs://world"]\nlocation = "EU"\n'
    )
    assert regions.region_of(tmp_path / "eu" / "name") == "europe-west4"
    assert regions.region_of(f"file://{tmp_path}/eu") == "europe-west4"
    assert regions.region_of(tmp_path / "european") is None
    assert regions.region_of(Path("s3://us/lmlab/x")) == "us-central1"
    assert regions.region_of(Path("s3://us/lmlab-2/x")) == "us-east-1"
    assert regions.region_of(Path("gs://world/x")) == "eu"
    assert regions.region_of(Path("gs://worlds/x")) is None
    assert [str(root) for root in regions.regional_roots()] == [str(tmp_path / "eu"), "s3://us/lmlab"]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("us", "us-central1", True),
        ("europe-west4", "eu", True),
        ("eu", "eu-west-1", True),
        ("EU", "europe-north1", True),
        ("asia", "asia-northeast1", True),
        ("eu-west4", "europe-west4", True),
        ("eu-west-1", "europe-west1", False),
        ("us-central1", "us-east1", False),
        ("us-central1", "us-central10", False),
        ("us", "eu", False),
        (None, "us", False),
        (None, None, True),
    ],
)
def test_multi_regions_cover_by_prefix_and_aliases_are_one(a, b, same):
    assert regions.same_region(a, b) is same
    assert regions.same_region(b, a) is same


def test_the_variable_wins_over_the_file_over_the_region_of_the_root(declare, monkeypatch):
    roots = '[roots]\neurope-west4 = "eu"\n'
    declare(f'root = "eu/deep"\n{roots}')
    assert regions.own_region() == "europe-west4"
    declare(f'root = "eu"\nregion = "us-east1"\n{roots}')
    assert regions.own_region() == "us-east1"
    monkeypatch.setenv("LMLAB_REGION", "asia-east1")
    assert regions.own_region() == "asia-east1"


def test_auto_asks_googles_metadata_server(declare, metadata, monkeypatch):
    here = f"127.0.0.1:{metadata.server_port}"
    monkeypatch.setattr(regions, "METADATA", (here, here))
    metadata.answers["GET /computeMetadata/v1/instance/zone"] = "projects/12/zones/us-central1-a"
    declare('root = "own"\nregion = "auto"')
    assert regions.own_region() == "us-central1"


def test_auto_asks_amazons_metadata_server_with_a_session(declare, metadata, monkeypatch):
    here = f"127.0.0.1:{metadata.server_port}"
    monkeypatch.setattr(regions, "METADATA", (here, here))
    metadata.answers |= {"PUT /latest/api/token": "t", "GET /latest/meta-data/placement/region": "us-east-1"}
    declare('root = "own"\nregion = "auto"')
    assert regions.own_region() == "us-east-1"


def test_a_silent_metadata_server_costs_its_limit_once_and_the_region_is_the_roots(metadata):
    metadata.delay_s[0] = 1.5
    here = f"127.0.0.1:{metadata.server_port}"
    started = time.monotonic()
    assert regions.ask_metadata((here, here), 0.2) is None
    assert regions.ask_metadata((here, here), 0.2) is None
    assert time.monotonic() - started < 1


def test_the_root_is_that_of_this_region_and_never_invented(declare, monkeypatch):
    declare('[roots]\neurope-west4 = "gs://eu/lmlab"\nus = "gs://us/lmlab"\n')
    monkeypatch.setenv("LMLAB_REGION", "us-central1")
    assert choose_root() == Path("gs://us/lmlab")
    monkeypatch.setenv("LMLAB_REGION", "us-moon1")
    assert choose_root() == Path("gs://us/lmlab")
    monkeypatch.setenv("LMLAB_REGION", "moon-west1")
    with pytest.raises(
        ConfigError, match=r"in moon-west1, and .* has no root there .only in europe-west4, us"
    ):
        choose_root()
    monkeypatch.delenv("LMLAB_REGION")
    with pytest.raises(ConfigError, match="region of this machine is unknown"):
        choose_root()


def test_a_process_whose_folder_was_removed_takes_no_file_for_missing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="folder that this process works in was removed"):
        regions.current()
    (tmp_path / "lab.toml").write_text("")
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lab.toml"))
    assert regions.current().own is None
