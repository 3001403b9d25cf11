"""The same promises on a local disk, S3 and GCS: plan, build, resume, fail, verify; what a step costs."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass, replace

import msgspec
import pytest
from sample_steps import (
    Model,
    Number,
    Recipe,
    chatty,
    count_up,
    divide,
    double,
    fit,
    forge,
    fork_inside,
    number,
    root_of,
    total,
    train,
)

from lmlab.artifacts import history, records
from lmlab.artifacts.claims import Timing
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
from lmlab.artifacts.output import Spool
from lmlab.artifacts.plan import Plan, State, make_plan
from lmlab.artifacts.runner import Options, execute
from lmlab.core.errors import ArtifactError
from lmlab.storage import Path, tree
from services.places import declare_root

V = "2026.12.01"
HASTY = Options(timing=Timing(beat_s=0.5, stale_s=2))


@pytest.fixture
def root(any_root) -> Path:
    return any_root


def ran(diary) -> list[str]:
    return diary.read_text().split("\n")[:-1]


def doubled(diary) -> Number:
    parts = [number(f"n/{i}", i, diary=str(diary)) for i in range(3)]
    return double("twice", total("sum", parts, diary=str(diary)), diary=str(diary))


def test_planning_touches_nothing(planned, run, root, diary):
    assert [item.why for item in planned(doubled(diary)).items.values()] == ["no record"] * 5
    assert root.walk() == []
    run(total("sum", [number("n/0", 0)]))
    before = root.walk()
    assert planned(doubled(diary)).items[f"n/0@{V}"].state is State.PRUNED
    assert root.walk() == before


def test_a_run_builds_everything_once_and_a_second_run_nothing(run, diary):
    report = run(doubled(diary))
    assert report.failed == {}
    assert report.record(f"twice@{V}").result == {"type": "Number", "value": 6}
    assert sorted(ran(diary)[:3]) == [f"n/{i}@{V}" for i in range(3)]
    assert ran(diary)[3:] == [f"sum@{V}", f"twice@{V}"]
    assert run(doubled(diary)).endings == {}
    assert len(ran(diary)) == 5


def test_output_of_inline_steps_and_of_processes_is_in_the_attempts_log(run, root, diary):
    run(doubled(diary))
    assert (root / "n/1" / V / ".claims" / "00000001.log").read_text() == "making 1\n"
    stored = history.entry(root, "twice")
    assert stored.log.read_text() == "hello from the step's process\n"


def test_the_output_of_a_running_process_is_shared_with_its_beats(run, root):
    log = root / "a" / ".claims" / "00000001.log"
    log.parent.make_folder()
    spool = Spool(log)
    for text in (b"one\n", b"two\n"):
        os.write(spool.file.fileno(), text)
        spool.share()
        assert log.read_bytes().endswith(text)
    os.write(spool.file.fileno(), b"three\n")
    spool.close()
    spool.share()
    assert log.read_bytes() == b"one\ntwo\nthree\n"


def test_identity_knows_no_root(planned, run, root, tmp_path, diary):
    here, there = run(doubled(diary)), Path(tmp_path / "elsewhere")
    second = execute(planned(doubled(diary), where=there), there)
    for address in here.plan.items:
        one, two = here.record(address), second.record(address)
        assert (one.fingerprint, one.config, one.files) == (two.fingerprint, two.config, two.files)
        name = address.replace("@", "/")
        assert (root / name).list() != (there / name).list()
        for place in (root, there):
            assert str(place) not in (place / name / records.RECORD).read_text()


def test_a_steps_process_gets_the_root_of_its_run(run, root):
    assert run(root_of("where")).record(f"where@{V}").result["root"] == str(root)


def test_a_failed_step_fails_its_dependents_and_a_rerun_retries_only_it(run, root, diary):
    def build(by: int) -> list[Number]:
        half = divide("half", by)
        return [total("sum", [half, number("n", 1, diary=str(diary))]), number("free", 2, diary=str(diary))]

    report = run(*build(0))
    assert {a: e.kind for a, e in report.endings.items() if e.kind != "built"} == {
        f"half@{V}": "failed",
        f"sum@{V}": "skipped",
    }
    assert report.exit_code == 1
    stored = history.entry(root, f"half@{V}")
    assert (stored.state, "ZeroDivisionError" in stored.beat.traceback) == ("failed", True)
    assert [path.name for path in stored.folder.list()] == [".claims"]
    assert run(*build(1)).record(f"sum@{V}").result["value"] == 2
    assert sorted(ran(diary)) == [f"free@{V}", f"n@{V}"]


def test_a_half_done_step_resumes_although_its_config_gained_a_field(run, planned, root, diary):
    grown = make_dataclass("Model", [("hidden", int, 64), ("layers", tuple, (1, 2)), ("scale", float, 1.0)])
    other = make_dataclass("Model", [("hidden", int, 32), ("layers", tuple, (1, 2))])
    run(train("run", Model(), diary=str(diary)))
    assert planned(train("run", grown())).items[f"run@{V}"].drift == ()
    changes = planned(train("run", other())).items[f"run@{V}"].drift
    assert [str(change) for change in changes] == ["model.hidden: 64 -> 32"]
    for model in (grown(), other()):
        (root / "run" / V / records.RECORD).remove()
        run(train("run", model, diary=str(diary)))
    assert ran(diary) == ["from 0", "from 1", "from 0"]


def test_a_resuming_process_finds_what_a_dead_attempt_left(run, root, diary):
    assert run(count_up("c", 3, diary=str(diary))).record(f"c@{V}").attempt == 1
    (root / "c" / V / records.RECORD).remove()
    (root / "c" / V / "count").write_text("2")
    run(count_up("c", 3, diary=str(diary)))
    assert ran(diary) == ["from 0 attempt 1", "from 2 attempt 2"]


def test_no_file_of_another_attempt_is_committed(run, root):
    folder = root / "twice" / V
    (folder / "deep" / "old.txt").write_text("of another attempt")
    (folder / "part-00007-of-00008").write_text("of another attempt")
    record = run(double("twice", number("n", 3))).record(f"twice@{V}")
    assert [path.name for path in tree.content(folder)] == ["value.txt"]
    assert record.files.count == 1


def test_verify_names_the_flipped_missing_and_added_file(run, root):
    record = run(double("twice", number("n", 3))).record(f"twice@{V}")
    folder = root / "twice" / V
    assert records.verify(folder, record) == []
    (folder / "deep" / "value.txt").write_text("7")
    assert records.verify(folder, record)[0].startswith("deep/value.txt: has other content")
    (folder / "deep" / "value.txt").remove()
    (folder / "new.txt").write_text("")
    assert records.verify(folder, record) == [
        "deep/value.txt: is missing",
        "new.txt: is not part of the artifact",
    ]


def test_a_step_that_writes_the_record_itself_is_refused(run, root):
    assert "wrote .artifact.json itself" in run(forge("n")).failed[f"n@{V}"].failure.cause
    assert records.load(root / "n" / V) is None


@pytest.mark.parametrize("stub", [b"", b"{}", b'{"schema": 1, "name": "n"}'])
def test_a_stub_is_never_read_as_a_record(run, root, stub):
    (root / "n" / V / records.RECORD).write_bytes(stub)
    with pytest.raises(ArtifactError, match="is corrupt"):
        run(number("n", 1))
    assert history.entry(root, f"n@{V}").state == "corrupt"


def test_a_record_copied_to_another_name_is_none(run, root):
    run(number("n", 1))
    (root / "m" / V / records.RECORD).write_bytes((root / "n" / V / records.RECORD).read_bytes())
    with pytest.raises(ArtifactError, match=r"is that of n@2026.12.01, so it was copied"):
        run(number("m", 1))


def test_an_input_that_disappears_before_or_while_it_is_used_says_to_run_again(run, planned, root, tmp_path):
    run(number("n", 3))
    plan = planned(double("twice", number("n", 3)))
    (root / "n" / V / records.RECORD).remove()
    cause = execute(plan, root).failed[f"twice@{V}"].failure.cause
    assert "its record has disappeared since. Run again." in cause
    run(double("twice", number("n", 3)))


def test_a_step_may_use_multiprocessing_while_a_store_is_open(run):
    assert run(fork_inside("f")).record(f"f@{V}").result["value"] == 6


def test_what_is_stored_is_listed_with_its_state(run, root):
    run(double("twice", number("n", 3)), divide("half", 0))
    (root / "n" / V / records.RECORD).write_text("{")
    assert [(one.address, one.state) for one in history.entries(root)] == [
        (f"half@{V}", "failed"),
        (f"n@{V}", "corrupt"),
        (f"twice@{V}", "built"),
    ]
    durations = history.last_durations_s(root, ["twice", "half", "nothing"])
    assert [duration is not None for duration in durations] == [True, False, False]


def test_listing_a_root_looks_into_no_data(faulty_root):
    root, faults = faulty_root
    execute(plan_of(root, double("twice", number("n", 3))), root)
    faults.set()
    assert [one.address for one in history.entries(root)] == [f"n@{V}", f"twice@{V}"]
    assert not [path for _, path in faults.seen() if "deep" in path]


@pytest.mark.slow
def test_a_root_of_five_thousand_artifacts_is_listed_in_seconds(tmp_path):
    root = Path(tmp_path / "root")
    record = execute(plan_of(root, number("n", 3)), root).record(f"n@{V}")
    for i in range(5000):
        name = f"group-{i % 50}/step-{i}"
        folder = root.local / name / V
        (folder / ".claims").mkdir(parents=True)
        (folder / records.RECORD).write_bytes(msgspec.json.encode(replace(record, name=name)))
    began = time.process_time()
    assert len(history.entries(root)) == 5001
    assert time.process_time() - began < 4


# -- what another region has ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "s3", "gcs"])
def test_what_another_region_has_is_copied_and_not_built(kind, request, tmp_path, monkeypatch, diary):
    endpoint = "" if kind == "local" else request.getfixturevalue(f"{kind}_endpoint")
    far = Path(tmp_path / "far")
    regions = f'[roots]\nus-central1 = "{far}"\n'
    own = declare_root(kind, endpoint, tmp_path, monkeypatch, regions)
    built = execute(plan_of(far, doubled(diary)), far).record(f"twice@{V}")
    plan = plan_of(own, total("later", [doubled(diary)], diary=str(diary)))
    states = {address: item.state for address, item in plan.items.items()}
    assert (states.pop(f"twice@{V}"), states.pop(f"later@{V}")) == (State.MIRROR, State.BUILD)
    assert set(states.values()) == {State.PRUNED}
    assert plan.items[f"twice@{V}"].why == "copied from us-central1, 1 B"
    report = execute(plan, own)
    assert report.exit_code == 0
    assert ran(diary)[5:] == [f"later@{V}"]
    copied = records.load(own / "twice" / V)
    assert (copied, records.verify(own / "twice" / V, copied)) == (built, [])
    assert plan_of(own, doubled(diary)).items[f"twice@{V}"].state is State.BUILT


def test_a_root_of_ones_own_takes_nothing_from_the_labs(run, tmp_path, diary):
    run(doubled(diary))
    private = Path(tmp_path / "private")
    assert {item.state for item in plan_of(private, doubled(diary)).items.values()} == {State.BUILD}


# -- what it costs, and what it survives --------------------------------------------------------------


def plan_of(root: Path | None, *handles: Number) -> Plan:
    return make_plan(collect(list(handles), Versions(V)), root)


def requests_of(faults, name: str) -> list[str]:
    return [
        f"{method} {path}" for method, path in faults.seen() if f"/{name}" in path or f"%2F{name}" in path
    ]


def test_a_fresh_step_costs_eight_requests_and_a_cached_one_a_single(faulty_root):
    root, faults = faulty_root
    faults.set()
    execute(plan_of(root, fit("one", Recipe(Model()))), root)
    assert len(requests_of(faults, "one")) <= 8, requests_of(faults, "one")
    faults.set()
    assert plan_of(root, fit("one", Recipe(Model()))).to_build == []
    assert len(faults.seen()) == 1


def test_an_offline_plan_makes_no_request(faulty_root, diary):
    _, faults = faulty_root
    faults.set()
    assert plan_of(None, doubled(diary)).items[f"sum@{V}"].why == "not looked at (--offline)"
    assert faults.seen() == []


@pytest.mark.parametrize("do", ["drop", "refuse"])
def test_every_step_runs_once_although_every_second_create_gets_no_answer(faulty_root, diary, do):
    root, faults = faulty_root
    faults.set({"do": do, "method": "PUT", "path": r"\bclaim$|json$", "every": 2})
    report = execute(plan_of(root, doubled(diary)), root)
    assert (report.failed, report.exit_code) == ({}, 0)
    assert sorted(ran(diary)) == sorted([*(f"n/{i}@{V}" for i in range(3)), f"sum@{V}", f"twice@{V}"])
    assert {ending.kind for ending in report.endings.values()} == {"built"}


@pytest.mark.slow
def test_a_store_that_goes_away_during_a_run_is_one_line_and_the_rerun_goes_on(faulty_root, diary):
    root, faults = faulty_root
    execute(plan_of(root, number("n/0", 0, diary=str(diary))), root)
    plan = plan_of(root, total("sum", [number(f"n/{i}", i, diary=str(diary)) for i in range(2)]))
    faults.set({"do": "refuse", "path": "n(/|%2F)1"})
    failure = execute(plan, root, HASTY).failed[f"n/1@{V}"].failure
    assert (failure.exit_code, len(failure.cause.splitlines())) == (3, 1)
    assert "[limits] in lmlab.toml" in failure.cause
    faults.set()
    assert execute(plan_of(root, total("sum", [number("n/0", 0), number("n/1", 1)])), root).exit_code == 0


@pytest.mark.slow
def test_a_store_that_is_away_for_a_moment_when_a_step_ends_does_not_cost_the_step(faulty_root, diary):
    root, faults = faulty_root
    plan = plan_of(root, number("n", 1, diary=str(diary)))
    faults.set({"do": "refuse", "method": "PUT", "path": "artifact.{1,3}json", "times": 8})
    assert execute(plan, root).record(f"n@{V}").result["value"] == 1
    assert ran(diary) == [f"n@{V}"]


def test_the_record_of_an_owner_that_woke_up_too_late_is_replaced(faulty_root):
    root, faults = faulty_root
    folder = root / "n" / V
    other = execute(plan_of(root, number("m", 7)), root).record(f"m@{V}")
    # What the runner asks last before it commits is whether its claim still stands.
    faults.set({"do": "delay", "seconds": 0.7, "method": "GET", "path": "claims(%2F)?$"})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(execute, plan_of(root, number("n", 1)), root)
        while not any(method == "GET" and "claims" in path for method, path in faults.seen()):
            time.sleep(0.01)
        records.commit(folder, replace(other, name="n", epoch="of a zombie"))
        report = running.result()
    assert report.exit_code == 0
    assert records.load(folder) == report.record(f"n@{V}")
    assert records.load(folder).result["value"] == 1


@pytest.mark.slow
def test_a_full_disk_for_the_output_of_a_remote_root_is_named(s3_endpoint, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        root = declare_root("s3", s3_endpoint, tmp_path, monkeypatch)
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        failure = execute(plan_of(root, chatty("loud", 5000)), root).failed[f"loud@{V}"].failure
        assert (failure.exit_code, "The disk is full" in failure.cause) == (3, True)
        assert len(history.entry(root, "loud").log.read_bytes()) > 10_000
        assert execute(plan_of(root, chatty("loud", 5)), root).exit_code == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)
