"""Configs survive JSON, differ field by field, and refuse what has no stable form."""

import enum
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, strategies as st

from lmlab.core.config import canonical, decode, diff, encode, fingerprint
from lmlab.core.errors import ConfigError


class Kind(enum.Enum):
    small = "small"
    large = "large"


@dataclass(frozen=True)
class Adam:
    lr: float = 1e-3


@dataclass(frozen=True)
class Muon:
    lr: float = 2e-2
    steps: int = 5


@dataclass(frozen=True)
class Recipe:
    name: str
    optimizer: Adam | Muon = field(default_factory=Muon)
    kind: Kind = Kind.small
    sizes: tuple[int, ...] = (64, 128)
    weights: dict[str, float] = field(default_factory=dict)
    window: int | None = None
    mode: Literal["full", "half"] = "full"
    limit: timedelta = timedelta(seconds=5)
    folder: Path = Path("a/b")


recipes = st.builds(
    Recipe,
    name=st.text(),
    optimizer=st.builds(Adam, st.floats(allow_nan=False, allow_infinity=False))
    | st.builds(Muon, steps=st.integers()),
    kind=st.sampled_from(Kind),
    sizes=st.lists(st.integers()).map(tuple),
    weights=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    window=st.none() | st.integers(),
)


@given(recipes)
def test_a_config_survives_the_round_trip(recipe):
    assert decode(Recipe, encode(recipe)) == recipe


@given(st.dictionaries(st.text(), st.integers() | st.text(), min_size=2))
def test_the_order_of_keys_never_changes_the_fingerprint(data):
    shuffled = dict(reversed(data.items()))
    assert fingerprint(encode(data)) == fingerprint(encode(shuffled))


def test_a_union_is_told_apart_by_the_tag_and_not_by_its_fields():
    assert decode(Recipe, encode(Recipe("x", optimizer=Adam(0.5)))).optimizer == Adam(0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), lambda: 1, object(), {1: 2}, print])
def test_values_without_a_stable_form_are_refused_with_their_place(value):
    with pytest.raises(ConfigError, match=r"recipe\.weights"):
        encode({"weights": value}, "recipe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": "x"}, "no field 'nam'"),
        ({"sizes": [1, "2"]}, r"sizes\[1\] is '2', but must be int"),
        ({"window": True}, "window is True"),
        ({"kind": "huge"}, "'small', 'large'"),
        ({"mode": "none"}, "'full', 'half'"),
        ({"optimizer": {"type": "Sgd"}}, "'Sgd', but must be Adam or Muon"),
        ({"type": "Other"}, "must be Recipe"),
    ],
)
def test_decoding_names_the_field_that_is_wrong(change, message):
    data = encode(Recipe("x"))
    assert isinstance(data, dict)
    with pytest.raises(ConfigError, match=message):
        decode(Recipe, {**data, **change})


def test_a_missing_field_without_a_default_is_named():
    with pytest.raises(ConfigError, match=r"config\.name is missing"):
        decode(Recipe, {})


def test_a_difference_is_shown_field_by_field():
    changes = diff(encode(Recipe("x")), encode(Recipe("x", optimizer=Muon(steps=7), window=4)))
    assert [str(change) for change in changes] == ["optimizer.steps: 5 -> 7", "window: null -> 4"]


def test_one_and_true_are_different_values():
    assert diff({"a": 1}, {"a": True})


def test_sets_are_recorded_in_one_order():
    assert canonical(encode({"s": {"b", "a", "c"}})) == '{"s":["a","b","c"]}'
