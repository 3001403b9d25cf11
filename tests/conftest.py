"""Shape checking, the stores that tests run on, and folders that no test shares with the user's own."""

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from lmlab.core import environ
from lmlab.core.shapecheck import install_if_asked
from lmlab.dataflow import Runner, open_runner
from lmlab.storage import Path as StoragePath
from quickstart import run_small
from services.fault_proxy import Faults
from services.places import declare_root, make_bucket
from services.ray_cluster import Cluster
from services.starting import service

os.environ.setdefault("LMLAB_CHECK_SHAPES", "1")
install_if_asked()

# No deadline: two cores are shared with the programs that tests start. CI draws the same examples each time.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker begins one when the others are done."""

    def limit_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark else 0

    items.sort(key=limit_s, reverse=True)


@pytest.fixture(autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's root; the cache is shared, so that kernels compile once."""
    monkeypatch.setenv("LMLAB_ROOT", str(tmp_path_factory.mktemp("root")))
    monkeypatch.setenv("LMLAB_USER", "tester")


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
    endpoint = "" if request.param == "local" else request.getfixturevalue(f"{request.param}_endpoint")
    return declare_root(request.param, endpoint, tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def one_client_of_ray_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every Ray cluster of a host hands its clients ports from 23000 on and binds them seconds later, shared:
    with two clusters, one for each test process, calls then reach the wrong one.
    """
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / "lmlab-tests-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """Two nodes of two cores each, on this machine. A test that kills a node starts it itself."""
    cluster = Cluster()
    try:
        cluster.start_head()
        cluster.start_node()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def any_runner(request, monkeypatch) -> Callable[..., Runner]:
    """`open_runner` on processes and on a Ray cluster; code that opens its own runner goes there too."""
    on = "local" if request.param == "local" else request.getfixturevalue("ray_cluster").client_address
    monkeypatch.setenv("LMLAB_ON", on)
    return functools.partial(open_runner, on=on)


@pytest.fixture(scope="session")
def hub() -> Iterator[str]:
    """The address of a hub with made-up repositories (HF_ENDPOINT for the code under test)."""
    with service("loopback_hub") as endpoint:
        yield endpoint


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str], Faults]]:
    """Puts a proxy in front of an endpoint, which counts requests and misbehaves by rules."""
    with contextlib.ExitStack() as stack:
        yield lambda endpoint: Faults(stack.enter_context(service("fault_proxy", endpoint)))


@pytest.fixture(params=["s3", "gcs"])
def faulty_root(request, tmp_path, monkeypatch, fault_proxy) -> tuple[StoragePath, Faults]:
    """A fresh remote root behind a fault proxy, with limits of a few seconds."""
    faults = fault_proxy(request.getfixturevalue(f"{request.param}_endpoint"))
    limits = "[limits]\nconnect_s = 1\nread_s = 1\ntotal_s = 4\ntries = 4\n"
    return declare_root(request.param, faults.address, tmp_path, monkeypatch, limits), faults


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Headless Chromium; of a module, since two at once in one process clash."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        message = "Debian's chromium is not installed"
        assert environ.get("CI") is None, message
        pytest.skip(message)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
