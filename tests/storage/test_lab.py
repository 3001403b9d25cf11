"""lmlab.toml: where it is found, what it may say, and errors that name key and file."""

import os
import subprocess
import sys

import pytest

from lmlab.core.errors import ConfigError
from lmlab.storage import Path
from lmlab.storage.lab import Backend, Limits, lab


@pytest.fixture
def write(tmp_path):
    """Writes an lmlab.toml and gives the folder of it."""

    def write(text: str):
        (tmp_path / "lmlab.toml").write_text(text)
        return tmp_path

    return write


def test_everything_a_lab_declares_is_read(write):
    folder = write("""
        root = "runs"
        region = "europe-west4"
        [roots]
        us-central1 = "s3://lab-us/lmlab"
        europe-west4 = "gs://lab-eu/lmlab"
        [backends."s3://"]
        endpoint = "https://minio.example"
        region = "us-east-1"
        addressing = "virtual"
        location = "us"
        access_key = ["file:/run/key", "env:LAB_KEY"]
        secret_key = "env:LAB_SECRET"
        [limits]
        total_s = 60
    """)
    found = lab(folder)
    assert (found.file, found.root, found.region) == (
        folder / "lmlab.toml",
        str(folder / "runs"),
        "europe-west4",
    )
    assert list(found.roots.items()) == [
        ("us-central1", "s3://lab-us/lmlab"),
        ("europe-west4", "gs://lab-eu/lmlab"),
    ]
    assert found.backend("s3", "any") == Backend(
        endpoint="https://minio.example",
        region="us-east-1",
        addressing="virtual",
        location="us",
        access_key=("file:/run/key", "env:LAB_KEY"),
        secret_key=("env:LAB_SECRET",),
    )
    assert found.limits == Limits(total_s=60.0)


def test_the_most_exact_backend_counts_whole(write):
    found = lab(write('[backends."s3://"]\nregion = "eu"\n[backends."s3://one"]\nendpoint = "https://one"\n'))
    assert found.backend("s3", "one") == Backend(endpoint="https://one")
    assert found.backend("s3", "other") == Backend(region="eu")
    assert found.backend("gs", "one") is None


def test_the_variable_counts_before_the_nearest_file_upwards(write, monkeypatch, tmp_path_factory):
    folder = write('root = "near"')
    (folder / "deep").mkdir()
    assert lab(folder / "deep").root == str(folder / "near")
    other = tmp_path_factory.mktemp("other") / "lab.toml"
    other.write_text('root = "/far"')
    monkeypatch.setenv("LMLAB_CONFIG", str(other))
    assert lab(folder / "deep").root == "/far"
    monkeypatch.setenv("LMLAB_CONFIG", str(folder / "none.toml"))
    with pytest.raises(ConfigError, match=r"LMLAB_CONFIG is .*none\.toml, and no such file is there"):
        lab()


def test_a_changed_file_is_read_anew(write):
    assert lab(write('root = "/a"')).root == "/a"
    folder = write('root = "/b"')
    os.utime(folder / "lmlab.toml", ns=(1, 1))
    assert lab(folder).root == "/b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = ", "is not valid TOML"),
        ("root = 3", "root=3 in .* must be a path"),
        ('region = ""', "region='' in .* must be a path"),
        ("rooot = 'x'", "has no field 'rooot'"),
        ("backends = 3", "backends must hold tables"),
        ("[backends]\n's3://' = 'x'", "backends must hold tables"),
        ("[backends.s3]\nregion = 'x'", "backends.'s3' is no address"),
        ("[backends.'s3://']\nendpiont = 'x'", "backends.*has no field 'endpiont'"),
        (
            "[backends.'s3://']\naddressing = 'host'",
            "addressing is 'host', but must be one of 'path', 'virtual'",
        ),
        ("[backends.'s3://']\nallow_http = 1", "allow_http is 1, but must be bool"),
        ("[backends.'s3://']\nendpoint = 'not a url'", "endpoint is no address"),
        ("[backends.'s3://']\nendpoint = 'http://minio'", "allow_http = true"),
        ("[backends.'s3://']\naccess_key = []", "access_key must be a list of references"),
        ("[backends.'s3://']\naccess_key = 3", "access_key must be a list of references"),
        ("[backends.'s3://']\naccess_key = 'env:A'", "access_key and secret_key belong together"),
        ("[limits]\nread_s = 0", "limits.read_s is 0"),
        ("[limits]\ntries = 1.5", "limits.tries is 1.5, but must be int"),
        ("[limits]\ntotal_s = inf", "limits.total_s is inf"),
        ("[roots]\nus = 3", "roots.us is 3, but must be str"),
    ],
)
def test_a_wrong_entry_is_named_with_its_file(write, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        lab(write(text))
    assert "\n" not in str(caught.value)
    assert "lmlab.toml" in str(caught.value)


def test_a_place_can_be_named_without_its_credentials(write, monkeypatch):
    monkeypatch.setenv(
        "LMLAB_CONFIG",
        str(write('[backends."s3://"]\naccess_key="env:NO"\nsecret_key="env:NO"\n') / "lmlab.toml"),
    )
    path = Path("s3://bucket/a") / "b"
    assert (path.scheme, path.bucket, path.key, path.name) == ("s3", "bucket", "a/b", "b")
    with pytest.raises(ConfigError, match=r"s3://bucket, access_key: none of env:NO is there"):
        path.read_bytes()


def test_importing_storage_loads_no_heavy_library():
    code = "import sys, lmlab.storage; lmlab.storage.Path('s3://b/x'); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"httpx", "pyarrow", "numpy", "polars", "duckdb", "starlette"} & set(loaded)
