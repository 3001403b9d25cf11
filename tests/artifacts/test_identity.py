"""Names, versions, recorded configs and drift."""

import enum
import math
from dataclasses import dataclass, field, make_dataclass

import pytest
from hypothesis import given, strategies as st
from sample_steps import Model, Number, Recipe, fit, number, total

from lmlab.artifacts import Artifact, Out, RunOnly, adopt, step
from lmlab.artifacts.graph import Graph, collect
from lmlab.artifacts.identity import Versions, check_name, check_version, find_handles, replace_handles
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.resources import Resources
from lmlab.storage import Path

V = "2026.12.01"


@step(inline=True)
def takes(out: Out, value: object, workers: RunOnly[int] = 1, extra: int = 7) -> Artifact:
    return Artifact()


def graph(*handles: Artifact, version: str | None = V, overrides: tuple[str, ...] = ()) -> Graph:
    return collect(list(handles), Versions.of(version, overrides))


def fingerprint(value: object, **kwargs: object) -> str:
    return graph(takes("x", value, **kwargs)).nodes[f"x@{V}"].fingerprint


@pytest.mark.parametrize(
    "good", ["2026.12.01", "2026.12.01.2", "2024.02.29", "dev", "ablation-dev", "a1-dev"]
)
def test_dates_and_dev_are_versions(good):
    assert check_version(good, "x") == good


@pytest.mark.parametrize(
    "bad",
    ["v1", "../x", "", "2026.1.1", "2026.13.01", "2026.02.30", "2026.12.01.0", "dev/x", "Dev", "latest"],
)
def test_anything_else_is_no_version(bad):
    with pytest.raises(ConfigError, match=r"is no version of x.*Use YYYY\.MM\.DD"):
        check_version(bad, "x")


@pytest.mark.parametrize(
    "bad", ["", "/x", "x/", "a//b", "../x", "a/../b", "s3://b/x", ".claims", "a b", "x\n"]
)
def test_names_that_could_leave_the_root_are_refused(bad):
    with pytest.raises(ConfigError, match="is no artifact name"):
        check_name(bad)


def test_a_name_can_not_hide_inside_another_artifacts_folder():
    with pytest.raises(ConfigError, match="looks like a version"):
        check_name("runs/dev/part")


def test_version_comes_from_the_name_then_override_then_default():
    made = graph(
        number("a@2026.01.01", 1), number("b", 2), number("c", 3), version=V, overrides=("b=2026.02.02",)
    )
    assert list(made.nodes) == ["a@2026.01.01", "b@2026.02.02", f"c@{V}"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("nope=dev",), "changes nothing"),
        (("a=dev", "a=2026.12.01"), "names a twice"),
        (("a",), "is not NAME=VERSION"),
        (("a=v1",), "is no version of a"),
    ],
)
def test_a_wrong_override_is_an_error(overrides, message):
    with pytest.raises(ConfigError, match=message):
        graph(number("a", 1), overrides=overrides)


def test_no_version_at_all_is_an_error_and_never_silently_dev():
    with pytest.raises(ConfigError, match="a has no version"):
        graph(number("a", 1), version=None)


def test_a_fixed_version_may_not_use_a_dev_one():
    with pytest.raises(ConfigError, match="has a fixed version but uses users/tester/a@dev"):
        graph(total(f"t@{V}", [number("a@dev", 1)]))


def test_a_cycle_is_an_error():
    first = number("a", 1)
    second = total("b", [first])
    first.after(second)
    with pytest.raises(ConfigError, match="neither could ever be built"):
        graph(second)


def test_one_address_with_two_recipes_is_an_error_naming_both():
    with pytest.raises(ConfigError, match=r"a@2026.12.01 is made twice.*value: 1 -> 2"):
        graph(number("a", 1), number("a", 2))


def test_one_address_with_one_recipe_is_one_step():
    made = graph(number("a", 1).on(Resources(cpu=1)), number("a", 1).after(number("b", 2)))
    assert sorted(made.nodes) == [f"a@{V}", f"b@{V}"]
    assert made.nodes[f"a@{V}"].after == (f"b@{V}",)


def test_names_that_differ_only_in_case_are_one_folder_on_many_disks():
    with pytest.raises(ConfigError, match="upper and lower case"):
        graph(number("Data", 1), number("data", 2))


@pytest.mark.parametrize(
    ("value", "message"),
    [(lambda: 1, "function"), (math.nan, "nan"), (math.inf, "inf"), (object(), "object"), ({1: 2}, "key")],
)
def test_a_value_without_a_stable_form_is_refused_with_its_place(value, message):
    with pytest.raises(ConfigError, match=f"x: value.*{message}"):
        fingerprint({"deep": [value]} if not isinstance(value, dict) else value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=6), st.randoms())
def test_the_order_of_keys_is_no_identity(value, random):
    keys = list(value)
    random.shuffle(keys)
    assert fingerprint(value) == fingerprint({key: value[key] for key in keys})


@given(json_values)
def test_the_root_and_run_only_arguments_are_no_identity(value):
    first, second = takes("x", value, workers=1), takes("x", value, workers=64).on(Resources(cpu=2))
    nodes = [graph(handle).nodes[f"x@{V}"] for handle in (first, second)]
    assert nodes[0].fingerprint == nodes[1].fingerprint
    folders = [nodes[0].folder(Path(root)) for root in ("/a", "memory://b")]
    assert folders[0] != folders[1]
    assert "workers" not in nodes[0].recipe.config


def test_inputs_count_as_addresses_wherever_they_stand():
    tokens, docs = number("tokens", 1), number("docs", 2)
    recipe = Recipe(Model(), data={tokens: 1.0, docs["train"]: 0.5})
    node = graph(fit("run", recipe)).nodes[f"run@{V}"]
    assert node.inputs == (f"tokens@{V}", f"docs@{V}")
    assert node.recipe.config["recipe"]["data"] == {f"tokens@{V}": 1.0, f"docs@{V}/train": 0.5}


def test_replacing_handles_keeps_everything_else():
    tokens = number("tokens", 1)
    value = {"recipe": Recipe(Model(hidden=3), {tokens: 2.0}), "plain": [1, (2, 3)], "set": {tokens}}
    built = Number.at("/data", value=5)
    replaced = replace_handles(value, lambda _handle: built)
    assert replaced["recipe"].data == {built: 2.0}
    assert replaced["recipe"].model is value["recipe"].model
    assert replaced["plain"] is value["plain"]
    assert replaced["set"] == {built}
    assert list(find_handles(value)) == [tokens, tokens]


def drift(old: object, new: object) -> list[str]:
    before, after = (graph(takes("x", value)).nodes[f"x@{V}"].recipe for value in (old, new))
    return [str(change) for change in after.drift(before.config)]


def test_a_new_field_at_its_default_is_no_drift_but_another_value_is():
    old = make_dataclass("Config", [("lr", float, 0.1)], frozen=True)
    new = make_dataclass(
        "Config", [("lr", float, 0.1), ("scale", float, 2.0), ("sizes", list, field(default_factory=list))],
        frozen=True,
    )  # fmt: skip
    assert drift(old(), new()) == []
    assert drift([{"deep": old()}], [{"deep": new()}]) == []
    assert drift(old(), new(scale=3.0)) == ['value.scale: "(absent)" -> 3.0']


def test_a_changed_default_is_drift():
    old, new = (make_dataclass("Config", [("lr", float, lr)], frozen=True) for lr in (0.1, 0.2))
    assert drift(old(), new()) == ["value.lr: 0.1 -> 0.2"]


def test_a_new_parameter_of_the_step_at_its_default_is_no_drift():
    recipe = graph(takes("x", 1)).nodes[f"x@{V}"].recipe
    older = {key: value for key, value in recipe.config.items() if key != "extra"}
    assert recipe.drift(older) == []


def test_enums_and_paths_have_one_spelling():
    class Kind(enum.Enum):
        FAST = "fast"

    assert fingerprint(Kind.FAST) == fingerprint("fast")


def test_a_wrong_argument_fails_when_the_step_is_called():
    with pytest.raises(ConfigError, match=r"number\('a', …\): got an unexpected keyword argument 'valu_'"):
        number("a", 1, valu_=1)


def test_a_handle_is_typed_but_can_not_be_read():
    handle = number("a", 1)
    assert isinstance(handle, Number)
    assert handle.name == "a"
    for read in (lambda: handle.value, lambda: handle.path, lambda: handle.version, lambda: handle.result):
        with pytest.raises(ArtifactError, match="is not built while the experiment is being described"):
            read()


def test_a_built_artifact_has_its_fields_parts_and_place():
    built = Number.at("/data/numbers", name="numbers", version="dev", value=3)
    assert (built.value, built.address, built.result) == (3, "numbers@dev", {"value": 3})
    assert built["train"].path == Path("/data/numbers/train")
    assert built["train"].address == "numbers@dev"


def test_steps_must_be_findable_by_their_processes():
    def inner(out: Out) -> Artifact:
        return Artifact()

    with pytest.raises(ConfigError, match="Define it at the top of its module"):
        step(inner)


@dataclass(frozen=True)
class Shadow(Artifact):
    path: str


@step(inline=True)
def shadows(out: Out) -> Shadow:
    return Shadow("x")


def test_a_result_may_not_hide_what_every_artifact_has():
    with pytest.raises(ConfigError, match=r"so Shadow\.path hides it"):
        shadows("a")


def test_a_chain_longer_than_pythons_stack_is_no_problem():
    handle = number("n/0", 0)
    for i in range(1, 3000):
        handle = total(f"n/{i}", [handle])
    assert len(graph(handle).nodes) == 3000


def test_adopted_data_is_identified_by_its_source():
    node = graph(adopt("raw/wiki", "/data/wiki", result=Number(4))).nodes[f"raw/wiki@{V}"]
    assert node.recipe.config["source"] == "/data/wiki"
    assert node.call.source == "/data/wiki"
