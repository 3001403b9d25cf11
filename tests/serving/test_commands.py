"""`serve` and `chat` as the command line calls them: taken ports, wrong folders, signals, what is said."""

import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from lmlab.core import environ, process
from lmlab.core.errors import ConfigError, HostError, StepFailed
from lmlab.serving.commands import chat, listen, serve
from lmlab.serving.running import running


def test_a_number_that_is_no_port_is_refused():
    with pytest.raises(ConfigError, match="port=99999"):
        listen("127.0.0.1", 99_999)


def test_a_taken_port_is_said_in_one_line_with_what_to_do(folders):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(HostError, match=rf"port {port} .* in use .*--port {port + 1}") as caught:
            serve(folders["grug"], port=port, say=lambda _: None)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_two_servers_that_are_still_loading_do_not_share_a_port():
    with listen("127.0.0.1", 0) as first, pytest.raises(HostError, match="in use"):
        listen("127.0.0.1", first.getsockname()[1])


def test_an_address_that_is_not_ours_is_named():
    with pytest.raises(HostError, match=r"192\.0\.2\.1:8000"):
        listen("192.0.2.1", 8000)


@pytest.mark.parametrize("command", [serve, chat])
def test_a_folder_that_is_no_model_is_refused_before_anything_is_loaded(tmp_path, command):
    extra = {"ask": input} if command is chat else {}
    with pytest.raises(ConfigError, match=r"lacks config\.json, model\.safetensors"):
        command(tmp_path, say=lambda _: None, **extra)
    with pytest.raises(ConfigError, match="is no folder"):
        command(tmp_path / "nowhere", say=lambda _: None, **extra)


def test_chat_continues_a_given_prompt_once_and_the_same_way_each_time(folders):
    said: list[str] = []
    pieces: list[str] = []
    options = {"prompt": "def main", "max_tokens": 12, "ask": input}
    chat(folders["dense"], say=said.append, **options)
    chat(folders["dense"], say=said.append, write=pieces.append, **options)
    assert said[0].startswith("def main")
    assert "".join(pieces) == said[0]
    assert len(pieces) > 3  # as it is generated, not in one piece


def test_chat_asks_until_there_is_nothing_more(folders):
    lines = iter(["The quick", "brown fox"])

    def ask(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    said: list[str] = []
    chat(folders["dense"], say=said.append, ask=ask, max_tokens=5)
    assert [line.split()[0] for line in said[1:]] == ["The", "brown"]


@pytest.mark.slow  # starts Python with jax: 5 s
def test_sigterm_lets_the_running_answer_end_and_then_the_server_with_exit_code_0(folders):
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        arguments = (str(os.getpid()), str(listener.fileno()))
        child = process.start(
            [sys.executable, "-m", "lmlab.serving.child", *arguments, "tiny@1", folders["grug"]],
            env=environ.child_environment(),
            pass_fds=(listener.fileno(),),
            stdout=subprocess.PIPE,
        )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(f"serving tiny@1 at {url}/v1 (ready after ".encode())
        body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert child.wait(timeout=20) == 0
        assert child.stdout.read() == b"stopped\n"
    finally:
        process.kill_group(child, grace_s=0)
        child.stdout.close()


@pytest.mark.slow  # starts Python with jax: 3 s
def test_a_server_that_does_not_come_up_is_reported_with_its_last_words(folders, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folders["dense"].iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StepFailed, match=r"model\.safetensors"), running(broken, "broken@1"):
        pytest.fail("a damaged model was served")
