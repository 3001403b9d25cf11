"""Planning and running on a local store, as an experimenter sees it."""

import json
import os
import subprocess
import time
from pathlib import Path as LocalPath

import pytest
from sample_steps import (
    Model,
    Number,
    Recipe,
    count_up,
    divide,
    double,
    fill,
    fit,
    launch_of,
    many,
    measure_text,
    number,
    overlap,
    shoot_itself,
    total,
    use_folder,
    wrong_type,
)

from lmlab.artifacts import Artifact, adopt, built, claims, history, records
from lmlab.artifacts.plan import State
from lmlab.artifacts.runner import Options, execute
from lmlab.core.errors import ArtifactError, ConfigError, StorageError
from lmlab.core.resources import Resources
from lmlab.storage import Path, tree

V = "2026.12.01"


@pytest.fixture(autouse=True)
def user(monkeypatch) -> None:
    monkeypatch.setenv("LMLAB_USER", "ann")


def ran(diary: LocalPath) -> list[str]:
    return diary.read_text().split("\n")[:-1]


def numbers(diary: LocalPath) -> Artifact:
    return total("sum", [number(f"n/{i}", i, diary=str(diary)) for i in range(4)], diary=str(diary))


def test_a_run_builds_everything_once_and_a_second_run_nothing(run, diary):
    report = run(double("twice", numbers(diary), diary=str(diary)))
    assert report.exit_code == 0
    assert report.record(f"twice@{V}").result == {"type": "Number", "value": 12}
    assert sorted(ran(diary)[:4]) == [f"n/{i}@{V}" for i in range(4)]
    assert ran(diary)[4:] == [f"sum@{V}", f"twice@{V}"]
    again = run(double("twice", numbers(diary), diary=str(diary)))
    assert again.endings == {}
    assert len(ran(diary)) == 6


def test_what_a_built_artifact_was_made_from_is_not_even_looked_at(run, planned, root, diary):
    run(numbers(diary))
    (root / "n").remove_tree()
    plan = planned(numbers(diary))
    assert {item.state for item in plan.items.values()} == {State.BUILT, State.PRUNED}
    assert run(numbers(diary)).endings == {}


def test_planning_touches_nothing_and_offline_reads_nothing(planned, root, diary):
    plan = planned(numbers(diary))
    assert [item.why for item in plan.items.values()] == ["no record"] * 5
    assert not root.exists()
    assert planned(numbers(diary), where=None).items[f"sum@{V}"].why == "not looked at (--offline)"


def test_a_plan_of_a_shared_chain_visits_every_step_once(planned):
    shared = number("s/0", 0)
    for i in range(1, 200):
        shared = total(f"s/{i}", [shared])
    leaves = [total(f"leaf/{i}", [shared]) for i in range(200)]
    began = time.process_time()
    plan = planned(*leaves)
    assert len(plan.items) == 400
    assert time.process_time() - began < 1.0


def test_a_changed_literal_is_served_with_the_field_that_drifted(run, planned):
    run(fit("fit", Recipe(Model(hidden=64))))
    plan = planned(fit("fit", Recipe(Model(hidden=128))))
    assert [str(change) for change in plan.items[f"fit@{V}"].drift] == ["recipe.model.hidden: 64 -> 128"]
    assert plan.to_build == []


def test_a_pin_refuses_another_recipe_when_planning_and_when_serving(run, planned):
    pinned = planned(number("a", 1)).items[f"a@{V}"].node.fingerprint
    with pytest.raises(ArtifactError, match="is pinned to"):
        planned(number("a", 2).pin(pinned))
    run(number("a", 1).pin(pinned))
    assert planned(number("a", 1).pin(pinned)).to_build == []
    with pytest.raises(ArtifactError, match="value: 1 -> 2"):
        planned(number("a", 2).pin(pinned))


def test_dev_is_rebuilt_only_when_its_recipe_or_an_input_changed(run, planned, diary):
    def build(value: int) -> Artifact:
        return total("sum", [number("n", value, diary=str(diary))], diary=str(diary))

    run(build(1), version="dev")
    assert run(build(1), version="dev").endings == {}
    plan = planned(build(2), version="dev")
    assert plan.items["users/ann/n@dev"].why == "dev, and the recipe changed: value: 1 -> 2"
    assert plan.items["users/ann/sum@dev"].why == "dev, and users/ann/n@dev is rebuilt"
    assert run(build(2), version="dev").record("users/ann/sum@dev").result["value"] == 2
    assert ran(diary) == ["users/ann/n@dev", "users/ann/sum@dev"] * 2


def test_dev_notices_an_input_that_was_rebuilt_in_another_run(run, planned, diary):
    def n() -> Artifact:
        return number("n", 1, diary=str(diary))

    run(total("sum", [n()]), version="dev")
    run(n(), version="dev", force=("n",))
    assert (
        planned(total("sum", [n()]), version="dev").items["users/ann/sum@dev"].why
        == "dev, and users/ann/n@dev was rebuilt"
    )


def test_dev_is_rebuilt_when_the_functions_code_changed_but_not_its_comments(run, planned, monkeypatch):
    run(number("n", 1), version="dev")
    assert planned(number("n", 1), version="dev").to_build == []
    monkeypatch.setitem(number.__dict__, "source_digest", "another")
    assert (
        planned(number("n", 1), version="dev").items["users/ann/n@dev"].why
        == "dev, and the code of number changed"
    )
    run(number("fixed", 1))
    assert planned(number("fixed", 1)).to_build == []


def test_force_is_for_dev_alone(planned):
    with pytest.raises(ConfigError, match="has a fixed version"):
        planned(number("n", 1), force=("n",))


def test_a_failed_step_fails_its_dependents_but_not_its_siblings(run, planned, root):
    bad = divide("bad", 0)
    needs_bad, sibling = total("needs", [bad, number("a", 1)]), double("sibling", number("b", 4))
    report = run(needs_bad, sibling)
    assert {a: e.kind for a, e in report.endings.items()} == {
        f"a@{V}": "built",
        f"b@{V}": "built",
        f"bad@{V}": "failed",
        f"needs@{V}": "skipped",
        f"sibling@{V}": "built",
    }
    assert report.exit_code == 1
    failure = report.failed[f"bad@{V}"].failure
    assert failure.cause.splitlines()[0].startswith("ZeroDivisionError: ")
    assert "sample_steps.py" in failure.cause
    assert "in divide: return Number(1 // by)" in failure.cause
    stored = history.entry(root, f"bad@{V}")
    assert stored.state == "failed"
    assert "ZeroDivisionError" in stored.beat.traceback
    assert planned(needs_bad, sibling).items[f"bad@{V}"].why.startswith("attempt 1 failed: ZeroDivisionError")


def test_a_rerun_retries_only_what_failed(run, diary):
    run(total("sum", [divide("bad", 0), number("n", 1, diary=str(diary))]))
    report = run(total("sum", [divide("bad", 1), number("n", 1, diary=str(diary))]))
    assert report.record(f"sum@{V}").result["value"] == 2
    assert ran(diary) == [f"n@{V}"]
    assert report.record(f"bad@{V}").attempt == 2


def test_nothing_half_written_remains_after_a_failure(run, root):
    run(divide("bad", 0))
    assert [path.name for path in (root / "bad" / V).list()] == [".claims"]


def test_a_step_whose_process_is_killed_fails_with_the_signal(run):
    report = run(shoot_itself("victim"))
    assert report.failed[f"victim@{V}"].failure.cause.startswith("The step's process was killed by SIGKILL.")
    assert report.exit_code == 1


def test_output_and_prints_go_to_the_attempts_log(run, root, capsys):
    report = run(double("twice", number("n", 3)))
    assert (root / "twice" / V / ".claims" / "00000001.log").read_text() == "hello from the step's process\n"
    assert (root / "n" / V / ".claims" / "00000001.log").read_text() == "making 3\n"
    assert capsys.readouterr().out == ""
    status = [event for event in report.events if event.kind == "status"]
    assert [(e.address, e.text, e.done, e.total) for e in status] == [(f"twice@{V}", "doubling", 1, 2)]


def test_a_part_of_an_artifact_is_a_folder_of_it(run):
    report = run(use_folder("len", double("twice", number("n", 50))["deep"]))
    assert report.record(f"len@{V}").result["value"] == 3
    assert [made_from.address for made_from in report.record(f"len@{V}").inputs] == [f"twice@{V}"]


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_arguments_of_any_size_reach_the_steps_process(run, size):
    """The pipe's buffer holds 8 KiB of them, and a guard listens on the same pipe after them."""
    report = run(measure_text("length", ("x" * size, "y")))
    assert report.record(f"length@{V}").result["value"] == size + 1


def test_handles_reach_the_step_built_even_as_dict_keys_of_a_config(run):
    parts = {number("a", 2): 1.0, number("b", 3): 2.0}
    assert run(fit("fit", Recipe(Model(), parts))).record(f"fit@{V}").result["value"] == 5


def test_after_orders_steps_without_being_identity(run, diary):
    first = number("first", 1, diary=str(diary))
    second = number("second", 2, diary=str(diary)).after(first)
    record = run(second).record(f"second@{V}")
    assert ran(diary) == [f"first@{V}", f"second@{V}"]
    assert (record.after, record.inputs) == ((f"first@{V}",), ())


def test_the_record_says_what_where_from_and_by_whom_and_no_root(run, root):
    record = run(double("twice", number("n", 3))).record(f"twice@{V}")
    assert (record.name, record.version, record.step) == ("twice", V, "double")
    assert record.config == {"type": "double", "of": f"n@{V}"}
    assert (record.files.count, record.files.bytes) == (1, 1)
    assert record.provenance.python
    assert record.inputs[0].epoch == records.load(root / "n" / V).epoch
    assert str(root) not in (root / "twice" / V / ".artifact.json").read_text()


def test_the_same_experiment_under_two_roots_records_the_same_identity(run, root, tmp_path):
    report = run(double("twice", number("n", 3)))
    second = execute(report.plan, Path(tmp_path / "other"))
    one, two = (r.record(f"twice@{V}") for r in (report, second))
    assert (one.fingerprint, one.files, one.config) == (two.fingerprint, two.files, two.config)


def test_a_result_of_another_class_is_refused(run):
    assert "declares Number, but returned a Artifact" in run(wrong_type("w")).failed[f"w@{V}"].failure.cause


def test_a_record_of_another_class_asks_for_a_new_version(run, root):
    run(number("n", 3))
    file = root / "n" / V / ".artifact.json"
    file.write_text(file.read_text().replace('"result_type": "Number"', '"result_type": "Numeral"'))
    cause = run(double("twice", number("n", 3))).failed[f"twice@{V}"].failure.cause
    assert "was recorded as Numeral, but the code now declares Number" in cause


def test_a_corrupt_record_is_an_error_not_a_rebuild(run, root):
    run(number("n", 3))
    (root / "n" / V / ".artifact.json").write_text('{"schema": 1, "na')
    with pytest.raises(ArtifactError, match="is corrupt"):
        run(number("n", 3))
    assert history.entry(root, f"n@{V}").state == "corrupt"


def test_an_input_that_disappears_during_the_run_says_to_run_again(run, planned, root):
    run(number("n", 3))
    plan = planned(double("twice", number("n", 3)))
    (root / "n" / V / ".artifact.json").remove()
    cause = execute(plan, root).failed[f"twice@{V}"].failure.cause
    assert "its record has disappeared since. Run again." in cause


def test_existing_data_is_adopted_in_place(run, root, tmp_path):
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / "value.txt").write_text("12345")
    raw = adopt(f"raw/wiki@{V}", str(tmp_path / "wiki"), result=Number(7))
    report = run(use_folder("len", raw), double("twice", raw))
    assert report.record(f"len@{V}").result["value"] == 5
    assert report.record(f"twice@{V}").result["value"] == 14
    stored = history.entry(root, "raw/wiki")
    assert (stored.state, stored.record.files.count, stored.record.source) == (
        "adopted",
        1,
        str(tmp_path / "wiki"),
    )
    assert records.verify(stored.folder, stored.record) == []


def test_adopting_what_is_not_there_is_an_error(run):
    cause = run(adopt(f"raw/x@{V}", "/no/such/place")).failed[f"raw/x@{V}"].failure.cause
    assert "nothing is there" in cause


@pytest.mark.parametrize(
    "name", ["LMLAB_TASK_INDEX", "SLURM_PROCID", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK"]
)
def test_a_runner_on_a_rank_above_zero_is_refused_by_name(run, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name}=1"):
        run(number("n", 1))
    monkeypatch.setenv(name, "0")
    assert run(number("n", 1)).exit_code == 0


def test_a_body_can_be_called_on_every_rank_without_runner_or_claim(tmp_path, monkeypatch):
    from lmlab.artifacts import Out

    monkeypatch.setenv("SLURM_PROCID", "3")
    out = Out.at(tmp_path / "out", name="n")
    assert number.body(out, 5) == Number(5)
    assert out.path.list() == []


def test_steps_that_need_all_cores_do_not_run_together(run, diary):
    steps = [overlap(f"o/{i}", diary=str(diary)).on(Resources(cpu=2)) for i in range(3)]
    run(*steps, options=Options(cpu=2))
    signs = [line[0] for line in ran(diary)]
    assert signs == ["+", "-"] * 3


def test_steps_that_fit_run_together(run, diary):
    run(*(overlap(f"o/{i}", diary=str(diary), seconds=0.5) for i in range(2)), options=Options(cpu=2))
    assert [line[0] for line in ran(diary)] == ["+", "+", "-", "-"]


def test_a_step_that_writes_the_record_itself_is_refused(run, root, monkeypatch):
    def forge(out, value, diary=""):
        (out.path / ".artifact.json").write_text("{}")
        return Number(value)

    monkeypatch.setattr(number, "body", forge)
    assert "wrote .artifact.json itself" in run(number("n", 1)).failed[f"n@{V}"].failure.cause
    assert records.load(root / "n" / V) is None


def test_a_resuming_step_finds_what_a_dead_attempt_left(run, root, diary):
    folder = root / "c" / V
    assert run(count_up("c", 3, diary=str(diary))).record(f"c@{V}").attempt == 1
    (folder / ".artifact.json").remove()
    (folder / "count").write_text("2")
    run(count_up("c", 3, diary=str(diary)))
    assert ran(diary) == ["from 0 attempt 1", "from 2 attempt 2"]


def test_a_resuming_step_with_another_recipe_starts_in_an_empty_folder(run, root, diary):
    run(count_up("c", 3, diary=str(diary)))
    (root / "c" / V / ".artifact.json").remove()
    run(count_up("c", 4, diary=str(diary)))
    assert ran(diary) == ["from 0 attempt 1", "from 0 attempt 2"]


def test_another_step_starts_in_an_emptied_folder(run, root):
    folder = root / "twice" / V
    (folder / "deep").make_folder()
    (folder / "deep" / "old.txt").write_text("of another attempt")
    record = run(double("twice", number("n", 3))).record(f"twice@{V}")
    assert [path.name for path in tree.content(folder)] == ["value.txt"]
    assert record.files.count == 1


def test_inline_steps_run_in_a_memory_store_with_the_same_records(planned):
    root = Path("memory://runs-in-memory")
    report = execute(planned(fit("fit", Recipe(Model(), {number("n", 5): 1.0})), where=root), root)
    assert report.record(f"fit@{V}").result["value"] == 5
    assert records.load(root / "n" / V).result["value"] == 5
    assert planned(number("n", 5), where=root).to_build == []


def test_a_store_without_put_if_absent_is_refused_before_anything_runs(planned, monkeypatch, diary):
    from lmlab.artifacts.runner import execute
    from lmlab.storage import stores

    monkeypatch.setattr(stores, "create", lambda scheme, bucket, key, data, place: True)
    root = Path("memory://forgetful")
    with pytest.raises(StorageError, match="lets a second writer create"):
        execute(planned(number("n", 1, diary=str(diary)), where=root), root)
    assert ran(diary) == []


def test_history_finds_differences(run, root):
    run(double("twice", total("sum", [number("n/0", 1), number("n/1", 2)])))
    one, two = (history.entry(root, f"n/{i}").record for i in (0, 1))
    changes = history.compare(one, two)
    assert [str(change) for change in changes["config"]] == ["value: 1 -> 2"]
    assert [e.address for e in history.entries(root)] == sorted(e.address for e in history.entries(root))


def test_provenance_of_a_steps_process_is_that_of_the_launch(run):
    report = run(launch_of("seen"))
    assert report.record(f"seen@{V}").result["argv"] == list(report.record(f"seen@{V}").provenance.argv)


def test_json_records_are_readable_by_anyone(run, root):
    run(number("n", 3))
    data = json.loads((root / "n" / V / ".artifact.json").read_text())
    assert data["result"] == {"type": "Number", "value": 3}
    assert claims.newest(root / "n" / V) == 1


@pytest.mark.slow
def test_a_full_disk_fails_the_step_with_exit_code_3_and_a_rerun_with_room_builds_it(planned, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        root = Path(disk / "root")
        report = execute(planned(fill("big", size_bytes=500_000), where=root), root)
        assert report.exit_code == 3
        assert "The disk is full" in report.failed[f"big@{V}"].failure.cause
        assert [path.name for path in (root / "big" / V).list()] == [".claims"]
        assert execute(planned(fill("big", size_bytes=500), where=root), root).exit_code == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_another_experiment_built_is_an_input_and_is_never_rebuilt(run, planned, diary):
    run(number("n/1", 21, diary=str(diary)))
    reference = built(f"n/1@{V}", Number)
    assert planned(reference).items[f"n/1@{V}"].drift == ()
    report = run(double("twice", reference, diary=str(diary)))
    assert report.record(f"twice@{V}").result == {"type": "Number", "value": 42}
    assert ran(diary) == [f"n/1@{V}", f"twice@{V}"]


def test_a_reference_to_what_is_not_built_is_refused_while_planning(planned):
    with pytest.raises(ArtifactError, match=r"n/1@2026.12.01 is not built below .* Run the experiment"):
        planned(double("twice", built(f"n/1@{V}", Number)))


def test_arguments_that_cannot_work_are_refused_when_the_step_is_called():
    with pytest.raises(ConfigError, match="count=0 makes nothing"):
        many("many", 0)
