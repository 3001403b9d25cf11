"""Whose a version is, what may stand in its place, and where a run may read from."""

import getpass
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as LocalPath

import pytest
from sample_steps import Number, note, number, total

from lmlab.artifacts import Artifact, Out, RunOnly, adopt, built, history, records, step
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions, bare_name, shared_login, stored_name
from lmlab.artifacts.plan import State, make_plan
from lmlab.artifacts.runner import Options, Report, execute
from lmlab.core.errors import ArtifactError, ConfigError, InputError
from lmlab.storage import Path, budget

V = "2026.12.01"
MINE = "users/tester"


@step(inline=True)
def count_bytes(out: Out, data: Artifact, diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    return Number(sum(path.size() for path in data.path.walk() if not path.name.startswith(".")))


# -- dev versions are per user ------------------------------------------------------------------------


def test_a_dev_artifact_is_kept_with_its_user_and_a_fixed_one_is_shared(run, root):
    run(total("sum", [number("n", 1)]), version="dev")
    run(number("n", 1))
    assert (root / f"{MINE}/n/dev/.artifact.json").exists()
    assert (root / f"{MINE}/sum/dev/.artifact.json").exists()
    assert (root / f"n/{V}/.artifact.json").exists()
    assert not (root / "n/dev").exists()
    assert records.load(root / f"{MINE}/sum/dev").inputs[0].address == f"{MINE}/n@dev"


def test_two_users_never_meet_but_share_what_is_fixed(run, planned, monkeypatch):
    handles = [total("sum", [number("n@2026.01.01", 1)])]
    run(*handles, version="dev")
    monkeypatch.setenv("LMLAB_USER", "somebody")
    plan = planned(*handles, version="dev")
    assert {a: item.state for a, item in plan.items.items()} == {
        "n@2026.01.01": State.BUILT,
        "users/somebody/sum@dev": State.BUILD,
    }


def test_names_below_users_stay_as_they_are():
    assert stored_name("users/somebody/n", "dev") == "users/somebody/n"
    assert stored_name("n", "ablation-dev") == f"{MINE}/n"
    assert [bare_name(name) for name in (f"{MINE}/a/b", "a/b", "users")] == ["a/b", "a/b", "users"]


def test_the_bare_name_is_enough_to_choose_force_and_find(run, planned, root):
    handles = total("sum", [number("n", 1)])
    run(handles, version="dev")
    graph = collect([handles], Versions("dev"))
    for wanted in ("n", "n@dev", f"{MINE}/n", f"{MINE}/n@dev"):
        assert graph.only(wanted).targets == (f"{MINE}/n@dev",)
        assert planned(handles, version="dev", force=(wanted,)).items[f"{MINE}/n@dev"].why == "forced"
        assert history.entry(root, wanted).address == f"{MINE}/n@dev"
    assert list(collect([handles], Versions(V, {"n": V, "sum": "dev"})).nodes) == [
        f"n@{V}",
        f"{MINE}/sum@dev",
    ]


def test_another_experiment_finds_my_dev_artifact_by_its_bare_name(run):
    run(number("n", 4), version="dev")
    assert (
        run(total("sum", [built("n", Number)]), version="dev").record(f"{MINE}/sum@dev").result["value"] == 4
    )


def test_who_has_no_name_is_refused_and_who_shares_a_login_is_warned(monkeypatch):
    monkeypatch.setenv("LMLAB_USER", "no/name")
    with pytest.raises(ConfigError, match="Set LMLAB_USER"):
        stored_name("n", "dev")
    assert stored_name("n", V) == "n"
    monkeypatch.delenv("LMLAB_USER")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "ubuntu")
    assert (shared_login(), stored_name("n", "dev")) == ("ubuntu", "users/ubuntu/n")
    monkeypatch.setattr(getpass, "getuser", _nobody)
    with pytest.raises(ConfigError, match="Set LMLAB_USER"):
        stored_name("n", "dev")


def _nobody() -> str:
    raise OSError("No username set in the environment")


# -- existing data in the place of an artifact ---------------------------------------------------------


@pytest.fixture
def with_overrides(root) -> Callable[..., Report]:
    def go(handle: Artifact, *overrides: str, version: str = "dev") -> Report:
        return execute(make_plan(collect([handle], Versions.of(version, overrides)), root), root)

    return go


@pytest.fixture
def data(tmp_path) -> LocalPath:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "text.txt").write_text("12345")
    return folder


def test_a_path_takes_the_place_of_an_artifact_and_nothing_is_run_or_recorded_for_it(
    with_overrides, root, data, diary
):
    expensive = total("raw", [number("n", 1, diary=str(diary))], diary=str(diary))
    handle = count_bytes("bytes", expensive.after(number("m", 2, diary=str(diary))), diary=str(diary))
    with pytest.raises(ArtifactError, match=r"no record is there, and .*missing 1 required .*'value'"):
        with_overrides(handle, f"raw={data}")
    untyped = count_bytes("bytes", built("raw"), diary=str(diary))
    report = with_overrides(untyped, f"raw={data}")
    assert report.plan.items[f"{MINE}/raw@path-dev"].state is State.ADOPTED
    assert report.record(f"{MINE}/bytes@dev").result["value"] == 5
    source = report.record(f"{MINE}/bytes@dev").inputs[0]
    assert (source.address, source.source) == (f"{MINE}/raw@path-dev", str(data))
    assert diary.read_text().split() == [f"{MINE}/bytes@dev"]
    assert [entry.address for entry in history.entries(root)] == [f"{MINE}/bytes@dev"]
    assert with_overrides(untyped, f"raw={data}").endings == {}


def test_a_path_to_an_artifact_gives_its_typed_result(with_overrides, run, root, tmp_path):
    run(number("n", 7))
    moved = tmp_path / "copy" / "n" / V
    moved.parent.mkdir(parents=True)
    (root / "n" / V).local.rename(moved)
    report = with_overrides(total("sum", [number("n", 1)]), f"n={moved}")
    assert report.record(f"{MINE}/sum@dev").result["value"] == 7


def test_another_path_is_another_input(with_overrides, data, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    handle = count_bytes("bytes", built("raw"))
    assert with_overrides(handle, f"raw={data}").record(f"{MINE}/bytes@dev").result["value"] == 5
    again = with_overrides(handle, f"raw={other}")
    assert again.plan.items[f"{MINE}/bytes@dev"].why == f"dev, and {MINE}/raw@path-dev was rebuilt"
    assert again.record(f"{MINE}/bytes@dev").result["value"] == 0


def test_a_fixed_version_may_not_use_a_given_path(with_overrides, data):
    with pytest.raises(ConfigError, match="has a fixed version but uses users/tester/raw@path-dev"):
        with_overrides(count_bytes("bytes", built("raw")), f"raw={data}", version=V)


def test_a_given_path_that_is_not_there_is_refused_before_any_work(with_overrides, root):
    with pytest.raises(InputError, match="--override raw=/nowhere/at/all: nothing is there"):
        with_overrides(count_bytes("bytes", built("raw")), "raw=/nowhere/at/all")
    assert not root.exists()


def test_adopting_and_giving_a_path_exclude_each_other(with_overrides, data):
    with pytest.raises(ConfigError, match="mutually exclusive"):
        with_overrides(count_bytes("bytes", adopt("raw", str(data))), f"raw={data}")


def test_an_old_experiment_is_its_data_adopted_and_its_fingerprint_pinned(run, planned, data):
    def old(rate: float) -> Artifact:
        return adopt("runs/old", str(data), result=Number(41), config={"rate": rate, "steps": 300})

    pin = planned(old(0.1)).items[f"runs/old@{V}"].node.fingerprint
    report = run(total("sum", [old(0.1).pin(pin), number("n", 1)]))
    assert report.record(f"sum@{V}").result["value"] == 42
    record = report.record(f"runs/old@{V}")
    assert (record.source, record.fingerprint, record.files.bytes) == (str(data), pin, 5)
    assert planned(old(0.1).pin(pin)).to_build == []
    with pytest.raises(ArtifactError, match=r"is pinned to .*config\.rate: 0\.1 -> 0\.2"):
        planned(old(0.2).pin(pin))


# -- what a step may read ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Other(Artifact):
    value: int


def test_an_input_read_as_another_class_fails_the_step_with_the_way_out(run):
    run(number("n", 1))
    report = run(total("sum", [built("n", Other)]))
    assert (
        "was recorded as Number, but the code now declares Other" in report.endings[f"sum@{V}"].failure.cause
    )


hidden = number("hidden", 1)


@step(inline=True)
def reads_its_module(out: Out) -> Number:
    return Number(hidden.value)


@step(inline=True)
def reads_through_a_helper(out: Out) -> Number:
    return Number(_helper())


def _helper() -> int:
    return hidden.value


def test_an_input_that_is_not_declared_is_refused_at_the_call_or_in_the_step(run):
    with pytest.raises(ConfigError, match="reads_its_module uses hidden of its module"):
        reads_its_module("r")
    failure = run(reads_through_a_helper("r")).endings[f"r@{V}"].failure
    assert "hidden is not built while the experiment is being described" in failure.cause
    assert "Pass it to a step and read it there" in failure.cause


# -- identity across processes --------------------------------------------------------------------------


_PRINT = """
from sample_steps import *
from lmlab.artifacts.graph import collect
from lmlab.artifacts.identity import Versions
a, b = number("a", 1), number("b", 2)
names = {"zeta", "alpha", "mid", "x1", "x2"}
recipe = Recipe(Model(), {a: 1.0, b: 0.5})
handles = [fit("f", recipe), takes_sets("s", names, frozenset([a, b]), dict.fromkeys(names, 1))]
print([node.fingerprint for node in collect(handles, Versions("2026.12.01")).nodes.values()])
"""


def test_sets_and_dicts_have_one_fingerprint_in_every_process():
    shown = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        folder = LocalPath(__file__).parent
        done = subprocess.run(
            [sys.executable, "-c", _PRINT], env=env, capture_output=True, text=True, cwd=folder, check=False
        )
        assert done.returncode == 0, done.stderr
        shown.add(done.stdout)
    assert len(shown) == 1
    assert shown.pop().count(",") == 3


# -- regions -------------------------------------------------------------------------------------------


@pytest.fixture
def regions(tmp_path, monkeypatch) -> LocalPath:
    """A lab of two regions; this machine is in the first, and so is the root of the tests."""
    far = tmp_path / "far"
    (far / "raw").mkdir(parents=True)
    (far / "raw" / "text.txt").write_text("12345")
    lab = tmp_path / "lmlab.toml"
    lab.write_text(
        f'root = "{tmp_path}/root"\nregion = "europe-west4"\n'
        f'[roots]\neurope-west4 = "{tmp_path}/root"\nus-central1 = "{far}"\n'
    )
    monkeypatch.setenv("LMLAB_CONFIG", str(lab))
    monkeypatch.delenv("LMLAB_ROOT")
    return far


@step(inline=True)
def reads(out: Out, place: str, diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    return Number(len(Path(place).read_text()))


def test_what_a_step_would_read_from_another_region_is_refused_before_anything_runs(
    run, root, regions, diary
):
    text = str(regions / "raw" / "text.txt")
    for handle in (
        reads("r", text, str(diary)),
        count_bytes("b", adopt("raw", str(regions / "raw")), str(diary)),
    ):
        with pytest.raises(ConfigError, match=r"lies in us-central1, but this machine is in europe-west4"):
            run(handle)
    assert (diary.read_text(), root.exists()) == ("", False)


def test_allowing_it_runs_and_leaves_a_row(run, root, regions, diary):
    allow = Options(allow_cross_region=True)
    text = f"file://{regions}/raw/text.txt"
    assert run(reads("r", text, str(diary)), options=allow).record(f"r@{V}").result["value"] == 5
    rows = [row for row in budget.rows(root) if row.kind == "allowed"]
    assert [(row.src_region, row.dst_region) for row in rows] == [("us-central1", "europe-west4")]
    assert "--allow-cross-region" in rows[0].path
    # Built by now, so its place is not compared any more.
    assert run(total("sum", [reads("r", text)])).exit_code == 0


def test_a_root_in_another_region_is_refused_too(regions, diary):
    plan = make_plan(collect([number("n", 1, diary=str(diary))], Versions(V)), Path(regions))
    with pytest.raises(ConfigError, match=f"The root {regions} lies in us-central1"):
        execute(plan, Path(regions))
    assert diary.read_text() == ""


def test_an_experiment_moved_to_another_region_builds_there_by_itself(run, root, regions, monkeypatch):
    run(number("n", 3))
    monkeypatch.setenv("LMLAB_REGION", "us-central1")
    there = Path(regions)
    plan = make_plan(collect([total("sum", [number("n", 3)])], Versions(V)), there)
    assert execute(plan, there).exit_code == 0
    here = make_plan(collect([total("sum", [number("n", 3)])], Versions(V)), root)
    assert here.items[f"sum@{V}"].node.fingerprint == plan.items[f"sum@{V}"].node.fingerprint
