"""The command as a stranger types it: what it prints, what it returns, what it refuses."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ADDRESS = "demo/count@2026.12.01"
STEPS = """
from lmlab import Artifact, Out, step
@step(inline=True)
def made(out: Out, value: object) -> Artifact: return Artifact()
HANDLE = made('hidden', 1)
@step(inline=True)
def undeclared(out: Out) -> Artifact: return Artifact() if HANDLE.path else Artifact()
"""
HEAVY = ["jax", "duckdb", "polars", "pyarrow", "ray", "numba", "scipy", "torch", "starlette", "numpy"]


def modules_after(code: str) -> set[str]:
    listing = f"import sys; {code}; print(' '.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in out.split()}


def cpu_s(*words: str) -> float:
    """CPU seconds of a Python process beyond those of an empty one: walls depend on who else runs here."""
    before = os.times()
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_the_first_import_is_light():
    assert modules_after("from lmlab import step, experiment").isdisjoint(HEAVY)
    assert min(cpu_s("-c", "from lmlab import step, experiment") for _ in range(3)) < 0.4


def test_help_is_a_table_and_light(lmlab):
    assert modules_after("from lmlab.cli.main import main; main(['--help'])").isdisjoint(
        [*HEAVY, "tyro", "rich"]
    )
    assert min(cpu_s("-m", "lmlab.cli.main", "--help") for _ in range(3)) < 0.3
    listing = lmlab("--help").stdout
    for verb in ("run", "plan", "ls", "show", "lineage", "diff", "verify", "serve", "chat"):
        assert re.search(rf"^  {verb} +\w", listing, re.MULTILINE)


def test_planning_the_quick_start_loads_nothing_heavy():
    code = "from lmlab.cli.main import main; main(['plan', 'experiments/quickstart.py', '--offline'])"
    assert modules_after(code).isdisjoint(["jax", "duckdb", "polars", "pyarrow", "ray"])


def test_run_builds_once_and_a_second_run_says_there_is_nothing_to_do(lmlab, file):
    first = lmlab("run", file)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith("2 artifacts below ")
    assert "2 build" in lines[0]
    assert lines[-4].startswith("built 2 artifacts in ")
    assert lines[-3] == "3 words"
    assert lines[-2].startswith("report: ")
    assert Path(lines[-2].removeprefix("report: ")).exists()
    assert lines[-1] == f"next: lmlab show {ADDRESS}"
    assert "\x1b" not in first.stdout
    second = lmlab("run", file)
    assert "nothing to do" in second.stdout
    assert "started" not in second.stdout


def test_python_exp_py_is_lmlab_run_exp_py(lmlab, file):
    assert lmlab("--", "--times", 2, program=(str(file),)).returncode == 0
    assert "nothing to do" in lmlab("run", file, "--", "--times", 2).stdout
    assert lmlab("--only", "demo/nope", program=(str(file),)).returncode == 2


def test_editing_a_function_builds_nothing_and_changing_a_literal_warns(lmlab, file):
    lmlab("run", file)
    file.write_text(file.read_text().replace("<p>{words}", "<b>{words}"))
    assert "nothing to do" in lmlab("run", file).stdout
    changed = lmlab("run", file, "--", "--times", 3)
    assert f"warning: {ADDRESS} is served although its recipe changed" in changed.stdout
    assert "times: 1 -> 3" in changed.stdout
    assert "nothing to do" in changed.stdout
    assert changed.returncode == 0


def test_plan_says_why_and_touches_nothing(lmlab, file, tmp_path):
    done = lmlab("plan", file, "--root", tmp_path / "root", "--version", "2026.11.30")
    assert "build  demo/text@2026.11.30   source  no record" in done.stdout
    assert not (tmp_path / "root").exists()
    rows = json.loads(lmlab("plan", file, "--offline", "--json").stdout)
    assert [row["why"] for row in rows] == ["not looked at (--offline)"] * 2


def test_a_failure_shows_the_step_the_cause_the_log_and_the_way_on(lmlab, file):
    failed = lmlab("run", file, "--", "--fail")
    assert failed.returncode == 1
    tail = failed.stdout.splitlines()[-5:]
    assert tail[0] == f"failed: count {ADDRESS}"
    assert tail[1] == "  ZeroDivisionError: integer division or modulo by zero"
    assert re.fullmatch(r"    at wordcount\.py:\d+ in count: words = words // 0", tail[2])
    assert Path(tail[3].removeprefix("log: ")).exists()
    assert tail[4].startswith("retry: ")
    assert tail[4].endswith("wordcount.py -- --fail")
    assert "Traceback" not in failed.stdout + failed.stderr
    shown = lmlab("show", ADDRESS).stdout
    assert "state    failed" in shown
    assert "ZeroDivisionError" in shown
    assert ADDRESS in lmlab("ls", "--failed").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["frob"], 2, "has no verb 'frob'"),
        (["run", "FILE", "--vrsion", "dev"], 2, "Perhaps you meant --version"),
        (["run", "FILE", "--", "--tims", "3"], 2, "Perhaps you meant --times"),
        (["run", "FILE", "--", "--times", "many"], 2, "--times"),
        (["run", "FILE", "--version", "v1"], 2, "'v1' is no version"),
        (["run", "FILE", "--version", "../x"], 2, "'../x' is no version"),
        (["run", "FILE", "--version", "2026.1.1"], 2, "'2026.1.1' is no version"),
        (["run", "FILE", "--version", ""], 2, "'' is no version"),
        (["run", "FILE", "--override", "demo/nope=dev"], 2, "changes nothing"),
        (["run", "FILE", "--override", "demo/text=dev", "--override", "demo/text=dev"], 2, "demo/text twice"),
        (["run", "FILE", "--override", "demo/text"], 2, "is not NAME=VERSION"),
        (
            ["run", "FILE", "--override", "demo/text=dev"],
            2,
            "has a fixed version but uses users/tester/demo/text@dev",
        ),
        (["run", "FILE", "--override", "demo/text=/no/such", "--version", "dev"], 1, "nothing is there"),
        (["run", "FILE", "--max-concurrent", "0"], 2, "max_concurrent=0"),
        (["run", "FILE", "--gang"], 2, "the environment lacks a rank and a size"),
        (["run", "FILE", "--on", "ray://x"], 2, "--on ray://x"),
        (["run", "FILE", "--root", "FILE"], 3, "is a file, not a folder"),
        (["run", "nope.py"], 2, "no Python file that exists"),
        (["show", "demo/nope"], 1, "no artifact called demo/nope"),
        (["show", "../x"], 2, "is no artifact name"),
        (["serve", "demo/nope"], 1, "no artifact called demo/nope"),
    ],
)
def test_a_mistake_is_one_line_with_the_right_exit_code(lmlab, file, words, code, message):
    done = lmlab(*(file if word == "FILE" else word for word in words))
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:", "wordcount.py:1: invalid syntax"),
        ("import nothing_like_it", "wordcount.py:1: ModuleNotFoundError"),
        ("x = 1", "has no function build()"),
        ("def build(): return undefined", "wordcount.py:1: NameError"),
        ("def build(): return 3", "build() returned no artifact"),
        (STEPS + "def build(): return made('s3://b/x', 1)", "'s3://b/x' is no artifact name"),
        (STEPS + "def build(): return made('x@v1', 1)", "'v1' is no version of x"),
        (STEPS + "def build(): return made('x', lambda: 1)", "x: value is a function"),
        (STEPS + "def build(): return made('x', float('nan'))", "x: value is nan"),
        (STEPS + "def build(): return made('x', 1, valu=2)", "unexpected keyword argument 'valu'"),
        (STEPS + "def build(): return made('x@2026.12.01', made('y', 1))", "uses users/tester/y@dev"),
        (
            STEPS + "def build(): a = made('a', 1); b = made('b', a); a.after(b); return b",
            "neither could ever be built",
        ),
        (STEPS + "def build(): return undeclared('x')", "undeclared uses HANDLE of its module"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(lmlab, file, text, message):
    file.write_text(text)
    done = lmlab("run", file, "--version", "dev")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_dev_is_each_users_own_and_found_by_its_bare_name(lmlab, file):
    done = lmlab("run", file, "--version", "dev")
    assert done.returncode == 0, done.stderr
    assert "users/tester/demo/count@dev" in done.stdout
    assert done.stderr == ""
    assert lmlab("show", "demo/count@dev").stdout.startswith("users/tester/demo/count@dev\n")
    assert lmlab("show", "demo/count").stdout.startswith("users/tester/demo/count@dev\n")
    forced = lmlab("run", file, "--version", "dev", "--only", "demo/text", "--force", "demo/text")
    assert "built 1 artifacts" in forced.stdout
    shared = lmlab("plan", file, "--version", "dev", env=_as_login("ubuntu"))
    assert shared.stderr.count("\n") == 1
    assert shared.stderr.startswith(
        "warning: users/ubuntu/demo/text@dev and all dev artifacts of the login ubuntu"
    )
    assert lmlab("plan", file, env=_as_login("ubuntu")).stderr == ""


def _as_login(name: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "LMLAB_USER"}
    return {**kept, **dict.fromkeys(("LOGNAME", "USER", "LNAME", "USERNAME"), name)}


def test_the_plan_says_what_is_mutable_and_what_was_given(lmlab, file, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "text.txt").write_text("one two three four")
    done = lmlab("run", file, "--version", "dev", "--override", f"demo/text={tmp_path}/given")
    assert re.search(
        r"adopted  users/tester/demo/text@path-dev +source +mutable +given by --override: /", done.stdout
    )
    assert "  mutable: rebuilds when its recipe, code or inputs change" in done.stdout
    assert "4 words" in done.stdout
    assert "mutable" not in lmlab("plan", file).stdout
    assert "demo/text" not in lmlab("ls").stdout


def test_a_root_in_another_region_is_refused_unless_allowed(lmlab, file, tmp_path):
    far = tmp_path / "far"
    (tmp_path / "lmlab.toml").write_text(f'region = "europe-west4"\n[roots]\nus-central1 = "{far}"\n')
    refused = lmlab("run", file, "--root", far)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "lies in us-central1, but this machine is in europe-west4" in refused.stderr
    assert not far.exists()
    assert lmlab("run", file, "--root", far, "--allow-cross-region").returncode == 0


def test_a_failed_step_is_not_tried_again_on_request(lmlab, file):
    lmlab("run", file, "--", "--fail")
    refused = lmlab("run", file, "--no-retry-failed", "--", "--fail")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"{ADDRESS} failed before (ZeroDivisionError" in refused.stderr


def test_a_traceback_is_there_for_those_who_ask(lmlab, file):
    asked = lmlab("show", "demo/nope", env={**os.environ, "LMLAB_TRACEBACK": "1"})
    assert "Traceback" in asked.stderr


def test_stored_artifacts_can_be_listed_shown_compared_and_traced(lmlab, file):
    lmlab("run", file)
    lmlab("run", file, "--version", "2026.12.02", "--", "--text", "one two")
    listing = lmlab("ls").stdout
    assert re.search(r"demo/count@2026\.12\.02 +built +Count +1 ", listing)
    shown = lmlab("show", "demo/count").stdout
    assert shown.startswith("demo/count@2026.12.02\n")
    assert "words: 2" in shown
    assert "input    demo/text@2026.12.02" in shown
    lineage = lmlab("lineage", ADDRESS).stdout
    assert re.search(r"made from\n  demo/text@2026\.12\.01  source", lineage)
    assert re.search(r"used for\n  demo/count@2026\.12\.01", lmlab("lineage", "demo/text@2026.12.01").stdout)
    difference = lmlab("diff", ADDRESS, "demo/count@2026.12.02").stdout
    assert "words: 3 -> 2" in difference
    assert 'demo/text: "2026.12.01" -> "2026.12.02"' in difference
    assert "do not differ" in lmlab("diff", ADDRESS, ADDRESS).stdout


@pytest.mark.parametrize(
    "words",
    [("ls",), ("show", ADDRESS), ("lineage", ADDRESS), ("diff", ADDRESS, ADDRESS), ("verify", ADDRESS)],
)
def test_every_verb_speaks_json(lmlab, file, words):
    done = json.loads(lmlab("run", file, "--json").stdout)
    assert done["results"][ADDRESS]["words"] == 3
    assert json.loads(lmlab(*words, "--json").stdout) is not None


def test_verify_finds_one_flipped_byte(lmlab, file):
    lmlab("run", file)
    assert "is intact: 1 files" in lmlab("verify", ADDRESS).stdout
    report = next(Path(os.environ["LMLAB_ROOT"]).rglob("report.html"))
    data = bytearray(report.read_bytes())
    data[0] ^= 1
    report.write_bytes(data)
    found = lmlab("verify", ADDRESS)
    assert found.returncode == 1
    assert "report.html: has other content" in found.stderr


def test_a_terminal_gets_a_live_view_and_the_same_last_lines(file, tmp_path):
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "lmlab.cli.main", "run", str(file)],
        stdout=follower,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
    except OSError:  # the terminal closes when the command ends
        pass
    os.close(leader)
    assert child.wait() == 0
    assert b"\x1b[" in seen
    assert b"built   demo/text@2026.12.01" in seen
    assert b"next: lmlab show demo/count@2026.12.01" in seen


def test_ctrl_c_ends_the_command_with_130_and_says_how_to_go_on(file, tmp_path):
    file.write_text(file.read_text().replace("    if fail:", "    import time; time.sleep(30)\n    if fail:"))
    command = [sys.executable, "-m", "lmlab.cli.main", "run", str(file)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    for line in child.stdout:
        if "demo/count" in line and "started" in line:
            break
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 130
    assert out.splitlines()[-1].startswith("continue: ")


def test_another_root_and_only_one_artifact(lmlab, file, tmp_path):
    done = lmlab("run", file, "--only", "demo/text", "--root", tmp_path / "other")
    assert done.returncode == 0
    assert lmlab("ls", "--root", tmp_path / "other").stdout.count("demo/") == 1
