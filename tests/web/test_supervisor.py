"""`lmlab web` as processes: children that come back, that know no secrets, and that never outlive it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs if pair)


def gone(pids: list[int], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_page_server_has_no_credentials_and_the_query_service_has_them(site):
    pages, query = (site.children()[name] for name in ("lmlab.web.app", "lmlab.artifacts.query"))
    assert environment(query)["AWS_SECRET_ACCESS_KEY"] == "not-for-pages"
    told = environment(pages)
    assert not [name for name in told if name.startswith(("AWS_", "GOOGLE_", "HF_")) or name == "HOME"]
    assert set(told) <= {
        *("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
        *("LMLAB_QUERY_URL", "LMLAB_QUERY_TOKEN"),
    }


def test_the_query_service_answers_nobody_without_the_token(site):
    import httpx

    url = environment(site.children()["lmlab.web.app"])["LMLAB_QUERY_URL"]
    assert httpx.get(f"{url}/artifacts").status_code == 401


@pytest.mark.slow
def test_a_killed_query_service_comes_back_and_pages_say_so_meanwhile(lab, serve):
    with serve(lab) as site:
        assert "web/report" in site.settled("/artifacts").text
        pages = site.children()["lmlab.web.app"]
        os.kill(site.children()["lmlab.artifacts.query"], signal.SIGKILL)
        seen = {}
        deadline = time.monotonic() + 30
        while seen.get("code") != 200 or 503 not in seen:
            assert time.monotonic() < deadline, seen
            answer = site.get("/artifacts")
            seen |= {"code": answer.status_code, answer.status_code: answer.text}
        assert "The query service is restarting" in seen[503]
        assert 'http-equiv="refresh"' in seen[503]
        assert "web/report" in seen[200]
        assert site.children()["lmlab.web.app"] == pages


@pytest.mark.slow
def test_a_killed_page_server_comes_back_on_the_same_port(lab, serve):
    with serve(lab) as site:
        site.settled("/")
        os.kill(site.children()["lmlab.web.app"], signal.SIGKILL)
        assert "web/report" in site.settled("/artifacts").text


@pytest.mark.slow
def test_kill_9_of_the_command_leaves_nothing(lab, serve):
    with serve(lab) as site:
        site.settled("/")
        children = list(site.children().values())
        assert len(children) == 2
        site.process.kill()
        assert gone(children)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_ctrl_c_and_terminate_end_it_cleanly(lab, serve, number, code):
    with serve(lab) as site:
        site.settled("/")
        children = list(site.children().values())
        site.process.send_signal(number)
        assert site.process.wait(20) == code
        assert gone(children, 0.1)


def test_a_port_in_use_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "lmlab.cli.main",
            "web",
            "--port",
            str(port),
            "--root",
            str(tmp_path),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3
    assert re.fullmatch(rf"HostError: port {port} .* in use by another program\..*\n", ended.stderr)
    assert ended.stdout == ""
