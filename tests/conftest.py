"""Shape checking, the stores that tests run on, and folders that no test shares with the user's own."""

import os
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from lmlab.core.shapecheck import install_if_asked
from lmlab.storage import Path as StoragePath
from quickstart import run_small
from services.starting import service

os.environ.setdefault("LMLAB_CHECK_SHAPES", "1")
install_if_asked()

# No deadline: two cores are shared with the programs that tests start. CI draws the same examples each time.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")


@pytest.fixture(autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's root; the cache is shared, so that kernels compile once."""
    monkeypatch.setenv("LMLAB_ROOT", str(tmp_path_factory.mktemp("root")))


@dataclass(frozen=True)
class Quickstart:
    """A root that holds the whole small quick start, and the command that built it."""

    root: Path
    first: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def small_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """Built once per session: workers that ask at the same time share it, by the claims it is made with."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    root = shared / "quickstart"
    root.mkdir(exist_ok=True)
    return Quickstart(root, run_small(root))


BUCKET = "lab-tests"


def make_bucket(endpoint: str) -> str:
    """Make the bucket of the tests; gives the endpoint back."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=20):
        return endpoint


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of moto's S3 server, with the bucket `lab-tests`."""
    with service("moto_s3") as endpoint:
        yield make_bucket(endpoint)


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    """The address of ministack's S3 server, with the bucket `lab-tests`."""
    with service("ministack_s3") as endpoint:
        yield make_bucket(endpoint)


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """The address of the fake of Google's store, with the bucket `lab-tests`."""
    with service("fake_gcs") as endpoint:
        yield make_bucket(endpoint)


@pytest.fixture(params=["local", "s3", "gcs"])
def any_root(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoragePath:
    """A fresh root on each kind of store; LMLAB_CONFIG and LMLAB_ROOT say so to child processes too."""
    name = secrets.token_hex(6)
    if request.param == "local":
        root, backend = str(tmp_path / "root"), ""
    else:
        endpoint = request.getfixturevalue(f"{request.param}_endpoint")
        root = f"{'s3' if request.param == 's3' else 'gs'}://{BUCKET}/{name}"
        (tmp_path / "key").write_text("testing")
        backend = S3_BACKEND if request.param == "s3" else GCS_BACKEND
        backend = backend.format(endpoint=endpoint, key=tmp_path / "key")
    (tmp_path / "lmlab.toml").write_text(f'root = "{root}"\n{backend}')
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    monkeypatch.setenv("LMLAB_ROOT", root)
    return StoragePath(root)


S3_BACKEND = """
[backends."s3://"]
endpoint = "{endpoint}"
region = "us-east-1"
allow_http = true
access_key = "file:{key}"
secret_key = "file:{key}"
"""
GCS_BACKEND = """
[backends."gs://"]
endpoint = "{endpoint}"
allow_http = true
anonymous = true
"""
