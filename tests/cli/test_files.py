"""`lmlab fs`, `lmlab gc` and `lmlab report` as they are typed."""

import json
import os
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from lmlab.artifacts import claims
from lmlab.cli.main import main
from lmlab.storage import Path, budget
from lmlab.storage.scratch import DAY_S


@pytest.fixture
def call(capfdbinary):
    """Run one command line; gives exit code, what it printed, what it said on stderr."""

    def go(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return go


@pytest.fixture
def fs(call):
    """A subverb that must succeed; gives its lines, or its JSON."""

    def go(*words: object):
        code, out, err = call("fs", *words)
        assert (code, err) == (0, "")
        return json.loads(out) if "--json" in words else out.splitlines()

    return go


@pytest.fixture
def folder(tmp_path) -> Path:
    made = Path(tmp_path / "data")
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    (made / "deep" / "b.bin").write_bytes(bytes(range(256)) * 10)
    return made


def names(place: Path) -> list[str]:
    return [path.relative_to(place) for path in place.walk()]


def test_every_subverb_works_on_every_store(fs, folder, any_root):
    place = any_root / "copy"
    assert fs("cp", folder, place) == [f"copied 2 files, 2.5 KiB to {place}"]
    assert [line.split()[-1] for line in fs("ls", place)] == ["a.txt", "deep/"]
    assert fs("cat", place / "a.txt") == ["one", "two", "three"]
    assert fs("head", place / "a.txt", "-n", 2) == ["one", "two"]
    facts = fs("stat", place / "a.txt", "--json")
    assert (facts["kind"], facts["bytes"], facts["path"]) == ("file", 14, str(place / "a.txt"))
    assert fs("du", place, "--json")[-1] == {"name": ".", "files": 2, "bytes": 2574}
    assert fs("find", place, "**/*.{bin,txt}") == [str(place / "a.txt"), str(place / "deep" / "b.bin")]
    assert fs("hash", place) == fs("hash", folder)
    assert fs("verify", folder, place)[0].startswith("equal: 2 files, 2.5 KiB, sha256 ")
    assert fs("sync", folder, place) == ["0 changes done, 0 B to copy"]
    assert fs("cp", folder, place, "--verify", "--json")["present"] == 2
    assert fs("mv", place / "a.txt", f"{any_root}/moved/") == [
        f"moved 1 files, 14 B to {any_root / 'moved' / 'a.txt'}"
    ]
    assert fs("rm", place, "--yes") == ["removed 1 files, 2.5 KiB"]
    assert names(any_root) == ["moved/a.txt"]


def test_every_subverb_has_json(fs, folder, any_root):
    place = any_root / "copy"
    assert fs("cp", folder, place, "--json") == {"files": 2, "bytes": 2574, "target": str(place)}
    assert [row["kind"] for row in fs("ls", place, "--json")] == ["file", "folder"]
    assert fs("head", place / "a.txt", "--json") == ["one", "two", "three"]
    assert fs("cat", place / "a.txt", "--json")["text"] == "one\ntwo\nthree\n"
    assert fs("find", place, "*.txt", "--json") == [str(place / "a.txt")]
    assert len(fs("hash", place, "--json")["files"]) == 2
    assert fs("verify", folder, place, "--json") == {"equal": True, "problems": []}
    assert fs("sync", folder, any_root / "new", "--json", "--dry-run")[0]["kind"] == "copy"
    assert fs("mv", place, any_root / "new", "--json")["files"] == 2
    assert fs("rm", any_root / "new", "--yes", "--json") == {"files": 2, "bytes": 2574}
    assert fs("buckets", "--json")[0]["what"] == "own root"


def test_verify_names_what_differs_and_fails(call, folder, any_root):
    call("fs", "cp", folder, any_root)
    (any_root / "a.txt").write_text("one\ntwo\nthrEe\n")
    (any_root / "more").write_text("x")
    (folder / "less").write_text("x")
    code, out, _ = call("fs", "verify", folder, any_root)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("a.txt: 14 bytes with sha256 ")
    assert lines[1:] == [f"less: only in {folder}", f"more: only in {any_root}"]
    assert call("fs", "verify", folder / "a.txt", any_root / "a.txt")[1].startswith(
        f"{folder}/a.txt: 14 bytes"
    )


def test_sync_deletes_only_when_asked(fs, folder, any_root):
    fs("sync", folder, any_root)
    (folder / "a.txt").remove()
    assert fs("sync", folder, any_root) == ["0 changes done, 0 B to copy"]
    assert fs("sync", folder, any_root, "--delete", "--dry-run")[-1] == "1 changes would be done, 0 B to copy"
    assert names(any_root) == ["a.txt", "deep/b.bin"]
    fs("sync", folder, any_root, "--delete")
    assert names(any_root) == ["deep/b.bin"]


def test_a_folder_takes_a_file_in_and_a_slash_a_folder(fs, folder, tmp_path):
    fs("cp", folder / "a.txt", folder / "deep")
    fs("cp", folder, f"{tmp_path}/in/")
    assert names(Path(tmp_path / "in")) == ["data/a.txt", "data/deep/a.txt", "data/deep/b.bin"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("frob x", 2, "has no subverb 'frob'. It has: buckets, ls"),
        ("ls", 2, "takes PATH, not nothing"),
        ("cp x", 2, "takes SOURCE TARGET, not 'x'"),
        ("rm {0} --checksum", 2, "takes PATH, not --checksum"),
        ("rm {0}", 2, "holds 2 files, 2.5 KiB. Add --yes"),
        ("rm {0}/nope", 3, "does not exist"),
        ("cp {0} {0}", 2, "can't be copied into itself"),
        ("cp {0} {0}/deep", 2, "can't be copied into a folder inside of it"),
        ("mv {0} {0}/deep/", 2, "can't be copied into a folder inside of it"),
        ("mv {0}/deep {0}", 2, "is there already"),
        ("mv {0}/deep {0}/a.txt", 3, "a.txt can't be written: a part of that path is a file"),
        ("cp {0}/deep {0}/a.txt", 3, "a.txt can't be made: a part of that path is a file"),
        ("sync {0} {0}/deep", 2, "can't be copied into a folder inside of it"),
        ("cp {0} https://example.com/x", 2, "https://example.com/x can only be read"),
        ("cat {0}", 2, "is a folder, and this reads one file"),
        ("ls ftp://x", 2, "no place lmlab knows how to reach"),
        ("lifecycle {0}", 2, "has no lifecycle rules"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(call, folder, words, code, message):
    got, out, err = call("fs", *words.format(folder).split())
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert names(folder) == ["a.txt", "deep/b.bin"]


def test_an_empty_source_never_empties_a_target(call, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = call("fs", "sync", tmp_path / "empty", folder, "--delete")
    assert code == 2
    assert "holds no files, so a sync would empty" in err
    assert names(folder) == ["a.txt", "deep/b.bin"]


def test_an_empty_word_is_no_path(call):
    code, _, err = call("fs", "rm", "", "--yes")
    assert code == 2
    assert "takes PATH, not ''" in err


def test_a_hub_and_a_web_server_are_read_like_folders(fs, call, hub, any_root, tmp_path):
    with (tmp_path / "lmlab.toml").open("a") as file:
        file.write(f'[backends."hf://"]\nendpoint = "{hub}"\nallow_http = true\n')
        file.write('[backends."http://"]\nallow_http = true\n')
    corpus, web = "hf://datasets/acme/corpus", f"{hub}/datasets/acme/corpus/resolve/main"
    assert [line.split()[-1] for line in fs("ls", corpus)] == ["README.md", "data/"]
    assert fs("cat", f"{web}/README.md") == ["# made up"]
    fs("cp", corpus, any_root / "corpus", "--verify")
    assert fs("verify", corpus, any_root / "corpus")[0].startswith("equal: 12 files")
    fs("cp", f"{web}/data/large.bin", f"{any_root}/one/")
    assert (any_root / "one" / "large.bin").size() == 102_400
    for words, message in (
        (("mv", corpus, any_root), "can't be moved"),
        (("rm", corpus, "--yes"), "only be read"),
    ):
        code, _, err = call("fs", *words)
        assert code
        assert message in err


# -- gc --------------------------------------------------------------------------------------------


def test_gc_removes_expired_scratch_and_old_drafts_and_nothing_else(call, tmp_path, monkeypatch):
    root = Path(tmp_path / "root")
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    old = [
        root / "tmp" / "ttl=1d" / "x",
        root / "data" / "v" / ".part.bin.0a1b2c3d.unfinished",
        Path(tmp_path / "cache") / "tmp" / "ttl=7d" / "downloads" / "part",
    ]
    kept = [
        root / "data" / "v" / ".artifact.json",
        root / "data" / "v" / "x",
        root / "data" / "v" / "notes.unfinished",
    ]
    for path in [*old, *kept]:
        path.write_text("x" * 10)
        os.utime(path, (time.time() - 100 * DAY_S,) * 2)
    (root / ".young.unfinished").write_text("x")
    code, out, _ = call("gc", "--root", root, "--dry-run")
    assert code == 0
    assert out.splitlines()[-1] == f"3 files, 30 B would be removed below {root}"
    assert all(path.exists() for path in old)
    report = json.loads(call("gc", "--root", root, "--json")[1])
    assert {row["path"]: row["why"] for row in report["files"]} == {
        str(old[0]): "expired scratch",
        str(old[1]): "unfinished write",
        str(old[2]): "expired scratch",
    }
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in [*kept, root / ".young.unfinished"])


# -- transfers -------------------------------------------------------------------------------------


@pytest.fixture
def far(tmp_path, monkeypatch) -> Path:
    """A folder in another region than this lab's root."""
    (tmp_path / "lmlab.toml").write_text('root = "own"\n[roots]\neurope-west4 = "own"\nus-central1 = "far"\n')
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    monkeypatch.delenv("LMLAB_ROOT")
    monkeypatch.delenv("LMLAB_TRANSFER_BUDGET_GIB", raising=False)
    monkeypatch.setenv("LMLAB_RUN_ID", os.urandom(4).hex())
    monkeypatch.setenv("LMLAB_USER", "ada")
    (tmp_path / "far").mkdir()
    with (tmp_path / "far" / "huge").open("wb") as file:
        file.truncate(11 << 30)
    (tmp_path / "far" / "small").write_bytes(b"x" * 2048)
    return Path(tmp_path / "far")


def test_a_copy_above_the_budget_is_refused_before_its_first_byte(call, far, tmp_path):
    code, _, err = call("fs", "cp", far / "huge", tmp_path / "here")
    assert code == 3
    assert err.startswith(
        f"BudgetExceeded: Reading 11.0 GiB of {far}/huge from us-central1 into europe-west4"
    )
    assert not (tmp_path / "here").exists()


def test_a_day_without_offenders_says_so(call, far, tmp_path):
    assert call("report", "egress")[1].splitlines()[1:] == ["No offenders today."]
    call("fs", "cat", far / "small")
    lines = call("report", "egress")[1].splitlines()
    assert lines[1:] == ["  ada: 2.0 KiB in 1 transfers", "No offenders today."]


def test_a_paid_transfer_is_reported_with_who_lifted_the_limit(call, far, monkeypatch):
    monkeypatch.setenv("LMLAB_TRANSFER_BUDGET_GIB", "inf")
    budget.charge(far / "huge", 11 << 30)
    report = json.loads(call("report", "egress", "--json")[1])
    assert report["total_bytes"] == 11 << 30
    assert [user["user"] for user in report["offenders"]] == ["ada"]
    text = call("report", "egress")[1]
    assert "ada is above 1.0 GiB. The largest reads:" in text
    assert "ada lifted a limit in run " in text
    assert "LMLAB_TRANSFER_BUDGET_GIB=inf" in text


def test_an_offender_is_shown_with_the_ten_largest_reads(call, far):
    for number in range(12):
        budget.charge(far / f"part-{number}", (200 + number) << 20)
    text = call("report", "egress")[1]
    assert text.count("MiB /") == 10
    assert "part-2 " in text
    assert "part-1 " not in text
    assert len(json.loads(call("report", "egress", "--json", "--hours", 1)[1])["users"]) == 1


def test_what_is_older_than_the_window_does_not_count(call, far):
    budget.charge(far / "small", 2048)
    time.sleep(0.02)
    assert json.loads(call("report", "egress", "--json", "--hours", 1e-6)[1])["users"] == []


def test_a_public_report_tells_no_names(call, far, file, tmp_path):
    budget.charge(far / "users" / "grace" / "x", 2 << 30)
    budget.charge(Path(f"{far}/home-of/ada/x"), 2 << 30)
    text = call("report", "egress", "--public")[1]
    for name in ("ada", "grace"):
        assert name in call("report", "egress")[1]
        assert name not in text
        assert name not in call("report", "egress", "--public", "--json")[1]
    assert "user-1 is above 1.0 GiB" in text


def test_failed_artifacts_stand_in_the_daily_report(call, lmlab, file, tmp_path):
    root = tmp_path / "root"
    assert lmlab("run", file, "--root", root, "--", "--fail").returncode == 1
    text = call("report", "egress", "--root", root)[1]
    assert "demo/count@2026.12.01 is failed: ZeroDivisionError" in text
    public = call("report", "egress", "--root", root, "--public")[1]
    assert "demo/count@2026.12.01 is failed\n" in public
    shutil.rmtree(root)


def test_a_runner_that_fell_silent_on_another_machine_stands_in_the_daily_report(call, tmp_path):
    root = Path(tmp_path / "root")
    claim = claims.claim_path(root / "runs" / "big" / "2026.12.01", 1, "claim")
    owner = claims.Owner("t", "elsewhere", "boot", 7, 1, "run", {}, 0.0)
    claim.write_bytes(msgspec.json.encode(owner))
    assert "silent" not in call("report", "egress", "--root", root)[1]
    os.utime(claim, (time.time() - 80 * 3600,) * 2)
    text = call("report", "egress", "--root", root)[1]
    assert "runs/big@2026.12.01 is silent: no beat of process 7 on elsewhere for 80h00m" in text


def test_a_wrong_report_or_window_is_one_line(call):
    assert "It has: egress" in call("report", "week")[2]
    assert "--hours 0 is no time" in call("report", "egress", "--hours", 0)[2]


def test_usage_sums_what_artifacts_take_and_took(call, lmlab, file, tmp_path):
    root = tmp_path / "root"
    lmlab("run", file, "--root", root)
    facts = json.loads(call("report", "usage", "--root", root, "--json")[1])
    assert (facts["total"]["artifacts"], facts["total"]["bytes"]) == (2, len("one two three") + len("<p>3"))
    assert [share["what"] for share in facts["by_type"]] == ["Artifact", "Count"]
    text = call("report", "usage", "--root", root)[1]
    assert "largest" in text
    assert "by user" not in call("report", "usage", "--root", root, "--public")[1]


@pytest.fixture
def webhook():
    """A chat's webhook on loopback: what it was sent, and its address."""
    heard: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(404 if "gone" in self.path else 200)
            self.end_headers()

        def log_message(self, *_args):
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield heard, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_report_is_posted_to_the_first_webhook_that_is_there(call, far, webhook, monkeypatch):
    heard, address = webhook
    monkeypatch.setenv("HOOK", f"{address}/in")
    assert call("report", "egress", "--post", "env:ABSENT", "--post", "env:HOOK")[0] == 0
    assert "No offenders today." in heard[0]["text"]


@pytest.mark.parametrize("path", ["/gone/secret-path", "://no address secret-path"])
def test_a_failing_webhook_is_named_but_not_shown(call, far, webhook, monkeypatch, path):
    monkeypatch.setenv("HOOK", webhook[1] + path)
    code, out, err = call("report", "egress", "--post", "env:HOOK")
    assert (code, out) == (3, "")
    assert "<secret from env:HOOK>" in err
    assert "secret-path" not in err
