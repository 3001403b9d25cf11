"""What is special to a Ray cluster: dead nodes, code and settings that travel, places that are refused."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import faulty_tasks
import pytest

from lmlab.core.errors import ConfigError, HostError
from lmlab.core.resources import Resources
from lmlab.dataflow import Limits, WorkersLost, open_runner

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_node_killed_in_the_middle_costs_deaths_and_no_bytes(ray_cluster, tmp_path):
    (tmp_path / "here").mkdir()
    with open_runner(2, on="local") as runner:
        runner.run(faulty_tasks.writes_slowly, targets(tmp_path / "here", 4), name="write")
    (tmp_path / "there").mkdir()
    victim = ray_cluster.start_node()
    killed = threading.Event()

    def kill_when_it_works() -> None:
        deadline = time.monotonic() + 60
        while not killed.is_set() and time.monotonic() < deadline:
            pids = {int(mark.name.rpartition("-")[2]) for mark in (tmp_path / "there").glob("*.pid-*")}
            if any(ray_cluster.runs_on(pid, victim) for pid in pids):
                os.kill(ray_cluster.raylet(victim), signal.SIGKILL)
                killed.set()
            time.sleep(0.05)

    watcher = threading.Thread(target=kill_when_it_works)
    with open_runner(2, on=ray_cluster.client_address) as runner:
        watcher.start()
        runner.run(faulty_tasks.writes_slowly, targets(tmp_path / "there", 12), name="write")
        watcher.join()
        assert killed.is_set()
        assert runner.deaths >= 1
        assert runner.stages["write"].failures == 0
        assert runner.counters["records_out"] == 1200
    ray_cluster.stop_node(victim)
    for name in targets(Path(), 4):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert len(list((tmp_path / "there").glob("*.zst"))) == 12


def targets(folder, number):
    return [str(folder / f"rows-{index}.jsonl.zst") for index in range(number)]


def test_driver_on_a_node_of_the_cluster_needs_its_address_in_the_environment(ray_cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    with open_runner(2, on="ray") as runner:
        assert runner.run(faulty_tasks.slow_square, range(6), name="squares") == [0, 1, 4, 9, 16, 25]
        with open_runner(2, on="ray") as second:
            assert second.run(abs, [-1], name="absolute") == [1]
        assert runner.run(abs, [-2], name="absolute") == [2]  # the second did not close our connection


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_cluster_that_nobody_named_is_never_joined(address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=r"needs RAY_ADDRESS to name a cluster\. Start one with `ray start"):
        open_runner(2, on="ray")


def test_cluster_that_is_not_there_is_one_line():
    program = "from lmlab.dataflow import open_runner; open_runner(2, on='ray://127.0.0.1:1')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY_CLIENT_MAX_CONNECTION_RETRIES": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "HostError: The cluster ray://127.0.0.1:1 can't be used" in done.stderr


def test_cluster_of_another_version_is_named(ray_cluster):
    program = """if True:
        import sys, ray
        from lmlab.core.errors import HostError
        from lmlab.dataflow import open_runner
        ray.__version__ = "1.0.0"
        try:
            open_runner(2, on=sys.argv[1])
        except HostError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, ray_cluster.client_address],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Ray: 1.0.0" in done.stdout, done.stderr
    assert "Check that it runs, with the Python and the Ray of this machine." in done.stdout


def test_settings_and_credentials_travel_and_the_rest_stays(ray_cluster, tmp_path, monkeypatch):
    (tmp_path / "lmlab.toml").write_text('root = "s3://somewhere/lab"\n')
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("PRIVATE_DIARY", "dear diary")
    with open_runner(2, on=ray_cluster.client_address) as runner:
        names = ("LMLAB_USER", "AWS_ACCESS_KEY_ID", "PRIVATE_DIARY", "LMLAB_ON")
        assert runner.run(faulty_tasks.variables, [names], name="read") == [
            {"LMLAB_USER": "tester", "AWS_ACCESS_KEY_ID": "testing", "PRIVATE_DIARY": None, "LMLAB_ON": None}
        ]
        (tmp_path / "lmlab.toml").rename(tmp_path / "elsewhere.toml")  # as on another machine
        monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "elsewhere.toml"))
        assert runner.run(faulty_tasks.declared_root, [0], name="read") == ["s3://somewhere/lab"]


def test_module_that_no_node_has_installed_travels(ray_cluster, tmp_path):
    (tmp_path / "my_experiment.py").write_text(
        "import my_neighbour\n\n\ndef twice(n):\n    return my_neighbour.TWO * n\n"
    )
    (tmp_path / "my_neighbour.py").write_text("TWO = 2\n")
    program = """if True:
        import sys
        sys.path.insert(0, sys.argv[2])
        import my_experiment, pathlib
        from lmlab.dataflow import open_runner
        with open_runner(2, on=sys.argv[1]) as runner:
            for file in pathlib.Path(sys.argv[2]).glob("my_*.py"):
                file.unlink()  # as on a machine that does not have them
            print(runner.run(my_experiment.twice, [1, 2], name="twice"))
    """
    done = subprocess.run(
        [sys.executable, "-c", program, ray_cluster.client_address, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "[2, 4]\n", done.stderr


EXPERIMENT = """
import os
from pathlib import Path
from lmlab import Artifact, Out, experiment, step
from lmlab.dataflow import Dataset, open_runner


def parent(_task: int) -> str:
    return Path(f"/proc/{os.getppid()}/cmdline").read_text().split(chr(0))[0]


def even(row: dict) -> dict:
    return {"key": row["n"] % 2, "n": row["n"]}


def total(key: int, rows) -> dict:
    return {"key": key, "sum": sum(row["n"] for row in rows)}


@step
def look(out: Out) -> Artifact:
    with open_runner(2) as runner:
        parents = set(runner.run(parent, range(4), name="look"))
    numbers = Dataset.from_list([{"n": n} for n in range(10)], shards=3).map(even)
    sums = numbers.group_by("key", total, shards=2).write_jsonl(out.path / "{shard}.jsonl").run()
    (out.path / "parents").write_text(" ".join(sorted(parents)))
    return Artifact()


def build():
    return look("places/seen")


experiment(build, version="dev")
"""


def test_lmlab_run_takes_the_tasks_of_steps_to_the_cluster(ray_cluster, tmp_path):
    file = tmp_path / "where_tasks_run.py"
    file.write_text(EXPERIMENT)
    root = tmp_path / "root"
    command = [sys.executable, "-m", "lmlab.cli.main", "run", str(file), "--root", str(root)]
    done = subprocess.run(
        [*command, "--on", ray_cluster.client_address],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (seen,) = root.rglob("parents")
    assert [Path(word).name for word in seen.read_text().split()] == ["raylet"]
    rows = sorted(line for name in "01" for line in (seen.parent / f"{name}.jsonl").read_text().split())
    assert rows == ['{"key":0,"sum":20}', '{"key":1,"sum":25}']


def test_what_no_node_can_give_is_said_instead_of_waited_for(ray_cluster):
    with (
        open_runner(2, on=ray_cluster.client_address, limits=Limits(no_workers_s=4)) as runner,
        pytest.raises(WorkersLost, match=r"for 4 s: one asks for num_cpus=64, and the nodes are 2 cores, "),
    ):
        runner.run(abs, [1], name="map", resources=Resources(cpu=64))


def test_interrupt_ends_the_tasks_on_the_cluster(ray_cluster, tmp_path):
    program = """if True:
        import signal, sys, faulty_tasks
        from lmlab.dataflow import open_runner
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background script ignores it
        with open_runner(2, on=sys.argv[1]) as runner:
            runner.run(faulty_tasks.sleeps_after_mark, [sys.argv[2]], name="sleep")
    """
    mark = tmp_path / "pid"
    driver = subprocess.Popen(
        [sys.executable, "-c", program, ray_cluster.client_address, str(mark)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) != 0
    deadline = time.monotonic() + 30
    while Path(f"/proc/{mark.read_text()}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_missing_ray_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises((ConfigError, HostError), match=r"pip install 'lmlab\[ray\]'"):
        open_runner(2, on="ray://127.0.0.1:1")
