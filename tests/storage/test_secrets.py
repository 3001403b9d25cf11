"""Secrets are references: which one counts, what is refused, and that a value is shown nowhere."""

import base64
import json
import logging
import os
import pickle
import socket
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lmlab.core.errors import ConfigError, HostError, LmlabError, StorageError
from lmlab.storage import Path, secrets

VALUE = "s3cr3t-v4lue"


@pytest.fixture
def recording():
    """A store and a cloud that note the headers they get; `answers` maps a path to status and body."""
    seen: list[tuple[str, dict[str, str]]] = []
    answers: dict[str, tuple[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, body = answers.get(self.path, (200, b"data"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 18:25:31 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen, answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Writes lmlab.toml and makes it count."""

    def write(text: str) -> None:
        (tmp_path / "lmlab.toml").write_text(text)
        monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))

    return write


def test_the_first_reference_that_is_present_counts(tmp_path, monkeypatch):
    references = [f"file:{tmp_path}/key", "env:LAB_KEY", "env:LAB_OTHER"]
    monkeypatch.setenv("LAB_OTHER", "other")
    assert secrets.resolve(references, "key").reveal() == "other"
    monkeypatch.setenv("LAB_KEY", "from env")
    assert secrets.resolve(references, "key").reveal() == "from env"
    (tmp_path / "key").write_text("from file\n")
    assert secrets.resolve(references, "key").reveal() == "from file"


def test_nothing_present_names_all_that_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=rf"hf token: none of env:LAB_NO, file:{tmp_path}/no is there"):
        secrets.resolve(["env:LAB_NO", f"file:{tmp_path}/no"], "hf token")


@pytest.mark.parametrize("kind", ["folder", "binary", "empty"])
def test_a_reference_that_is_present_but_fails_is_not_fallen_through(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("LAB_KEY", "weaker")
    path = tmp_path / "key"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes({"binary": VALUE.encode() + b"\xff\xfe", "empty": b"\n"}[kind])
    with pytest.raises(HostError, match="nothing weaker is used") as caught:
        secrets.resolve([f"file:{path}", "env:LAB_KEY"], "key")
    assert VALUE not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "value", [VALUE, "hf_abcdef", "env:", "env:BAD NAME", "file:relative", "xgcp-secret://", ""]
)
def test_a_literal_is_refused_and_not_repeated(declare, value):
    declare(f'[backends."s3://"]\naccess_key = ["env:A", "{value}"]\nsecret_key = "env:B"')
    with pytest.raises(ConfigError, match=r"access_key\[1\] is no reference") as caught:
        Path("s3://bucket/x").read_bytes()
    assert not value or value not in str(caught.value).replace("env:NAME", "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["latest", "", "1x"])
def test_a_cloud_secret_without_a_number_is_refused(version):
    with pytest.raises(ConfigError, match="names no version"):
        secrets.resolve([f"gcp-secret://projects/p/secrets/s/versions/{version}"], "key")


def test_a_value_is_in_no_text(monkeypatch, caplog):
    monkeypatch.setenv("LAB_KEY", VALUE)
    secret = secrets.resolve(["env:LAB_KEY"], "key")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("lab").warning("%s %r %s", secret, secret, [secret])
    assert VALUE not in caplog.text + f"{secret}{secret!r}" + str({"key": secret})
    assert "<secret from env:LAB_KEY>" in caplog.text
    with pytest.raises(ConfigError, match="must not be written"):
        pickle.dumps(secret)


def test_no_stray_variable_outranks_or_joins_a_pinned_key(recording, declare, tmp_path, monkeypatch):
    endpoint, seen, _ = recording
    (tmp_path / "id").write_text("PINNED")
    (tmp_path / "key").write_text(VALUE)
    declare(
        f'[backends."s3://pinned"]\nendpoint = "{endpoint}"\nregion = "eu-1"\nallow_http = true\n'
        f'access_key = ["file:{tmp_path}/id", "env:AWS_ACCESS_KEY_ID"]\nsecret_key = "file:{tmp_path}/key"\n'
        f'[backends."gs://pinned"]\nendpoint = "{endpoint}"\nallow_http = true\n'
        f'token = "file:{tmp_path}/key"\n'
        f'[backends."s3://open"]\nendpoint = "{endpoint}"\nallow_http = true\nanonymous = true\n'
    )
    stray = {
        "AWS_ACCESS_KEY_ID": "STRAY",
        "AWS_SECRET_ACCESS_KEY": "STRAY",
        "AWS_SESSION_TOKEN": "STRAY",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "stray-1",
        "GOOGLE_BEARER_TOKEN": "STRAY",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "{}",
        "GOOGLE_BASE_URL": "http://127.0.0.1:9",
    }
    for name, value in stray.items():
        monkeypatch.setenv(name, value)
    for place in ("s3://pinned/x", "gs://pinned/x", "s3://open/x"):
        assert Path(place).read_bytes() == b"data"
    assert "STRAY" not in str(seen)
    assert "Credential=PINNED/" in seen[0][1]["authorization"]
    assert "/eu-1/s3/" in seen[0][1]["authorization"]
    assert seen[1][1]["authorization"] == f"Bearer {VALUE}"
    assert "authorization" not in seen[2][1]
    assert {name: os.environ[name] for name in stray} == stray


def test_a_pinned_reference_may_itself_name_a_clouds_variable(recording, declare, monkeypatch):
    endpoint, seen, _ = recording
    declare(
        f'[backends."s3://"]\nendpoint = "{endpoint}"\nregion = "eu-1"\nallow_http = true\n'
        'access_key = "env:AWS_ACCESS_KEY_ID"\nsecret_key = "env:AWS_SECRET_ACCESS_KEY"\n'
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"of-{name}")
    Path("s3://named/x").read_bytes()
    assert "Credential=of-AWS_ACCESS_KEY_ID/" in seen[0][1]["authorization"]
    assert "x-amz-security-token" not in seen[0][1]


def test_two_stores_in_one_process_have_their_own_endpoint_and_keys(
    s3_endpoint, recording, declare, monkeypatch
):
    endpoint, seen, _ = recording
    declare(
        f'[backends."s3://"]\nendpoint = "{s3_endpoint}"\nregion = "us-east-1"\nallow_http = true\n'
        'access_key = "env:ONE"\nsecret_key = "env:ONE"\n'
        '[backends."s3://elsewhere"]\nendpoint = "http://store.example"\nregion = "auto"\n'
        'addressing = "virtual"\nallow_http = true\naccess_key = "env:TWO"\nsecret_key = "env:TWO"\n'
    )
    monkeypatch.setenv("ONE", "first")
    monkeypatch.setenv("TWO", "second")
    # Nothing resolves such a host here: the recorder stands in for its network.
    monkeypatch.setenv("HTTP_PROXY", endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Path("s3://lab-tests/two-stores").write_bytes(b"1")
    assert Path("s3://elsewhere/a/b").read_bytes() == b"data"
    path, headers = seen[0]
    assert path == "http://elsewhere.store.example/a/b"
    assert "Credential=second/" in headers["authorization"]
    assert "/auto/s3/" in headers["authorization"]


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [("s3", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), ("gs", "GOOGLE_APPLICATION")],
)
def test_missing_credentials_name_the_variables_and_the_keys(
    declare, monkeypatch, tmp_path, scheme, variables
):
    declare("")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("lmlab.storage.stores.METADATA_HOSTS", {"s3": "127.0.0.1", "gs": "127.0.0.1"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LmlabError, match=f"no credentials for {scheme}://no-keys.*{variables}.*lmlab.toml"):
        Path(f"{scheme}://no-keys/x").read_bytes()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_silent_metadata_server_holds_nothing_up(declare, monkeypatch, tmp_path, scheme):
    declare("[limits]\nconnect_s = 0.4\nread_s = 0.4\ntotal_s = 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{address}")
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        began = time.monotonic()
        with pytest.raises(StorageError, match=f"no credentials for {scheme}://asked"):
            Path(f"{scheme}://asked/x").read_bytes()
        assert time.monotonic() - began < 1.9


def test_a_broken_service_account_is_an_error_without_its_text(declare, tmp_path):
    (tmp_path / "key.json").write_text(
        f'{{"client_email": "a@b", "private_key": "{VALUE}", "private_key_id": "1"}}'
    )
    declare(f'[backends."gs://"]\nservice_account = "file:{tmp_path}/key.json"')
    with pytest.raises(ConfigError, match="could not be made of its settings") as caught:
        Path("gs://broken-key/x").read_bytes()
    assert VALUE not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["s3", "hf"])
def test_a_value_that_no_header_can_hold_is_not_printed(recording, declare, monkeypatch, scheme):
    endpoint, _, _ = recording
    monkeypatch.setenv("LAB_KEY", f"{VALUE}\nsecond line")
    names = ("access_key", "secret_key") if scheme == "s3" else ("token",)
    keys = "\n".join(f'{name} = "env:LAB_KEY"' for name in names)
    declare(
        f'[limits]\ntotal_s = 2\n[backends."{scheme}://"]\nendpoint = "{endpoint}"\nallow_http = true\n{keys}'
    )
    with pytest.raises(LmlabError) as caught:
        Path("s3://odd-key/x" if scheme == "s3" else "hf://models/a/b/x").read_bytes()
    assert VALUE not in "".join(traceback.format_exception(caught.value))


@pytest.fixture
def cloud(recording, declare, monkeypatch):
    """A metadata server and a secret manager on this machine, with one secret."""
    endpoint, seen, answers = recording
    declare(f'[backends."gcp-secret://"]\nendpoint = "{endpoint}"')
    monkeypatch.setenv("GCE_METADATA_HOST", endpoint.removeprefix("http://"))
    token = "/computeMetadata/v1/instance/service-accounts/default/token"
    answers[token] = 200, json.dumps({"access_token": "of-the-machine"}).encode()
    payload = {"payload": {"data": base64.b64encode(VALUE.encode()).decode()}}
    answers["/v1/projects/p/secrets/s/versions/3:access"] = 200, json.dumps(payload).encode()
    answers["/v1/projects/p/secrets/s/versions/4:access"] = 404, b""
    answers["/v1/projects/p/secrets/s/versions/5:access"] = 403, b""
    return seen, answers


def reference(version: int) -> str:
    return f"gcp-secret://projects/p/secrets/s/versions/{version}"


def test_a_cloud_secret_is_read_by_the_machines_identity(cloud, monkeypatch):
    seen, answers = cloud
    monkeypatch.setenv("LAB_KEY", "weaker")
    assert secrets.resolve([reference(3), "env:LAB_KEY"], "key").reveal() == VALUE
    assert seen[0][1]["metadata-flavor"] == "Google"
    assert seen[1][1]["authorization"] == "Bearer of-the-machine"
    assert secrets.resolve([reference(4), "env:LAB_KEY"], "key").reveal() == "weaker"
    with pytest.raises(HostError, match="answers 403"):
        secrets.resolve([reference(5), "env:LAB_KEY"], "key")
    answers["/v1/projects/p/secrets/s/versions/3:access"] = 200, b'{"payload": {}}'
    with pytest.raises(HostError, match="KeyError"):
        secrets.resolve([reference(3), "env:LAB_KEY"], "key")
