"""`KEY=VALUE` on a command line: syntax, value as YAML, and place in nested params."""

from typing import Any

import pytest

from csrun.base import params_settings
from csrun.base.errors import UsageError


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("a.b=0.1", "a.b", 0.1),
        ("a=1e-3", "a", 0.001),
        ("a=[64, 64]", "a", [64, 64]),
        ("a={b: 1}", "a", {"b": 1}),
        ("a=true", "a", True),
        ("a=x=y", "a", "x=y"),
        ("a='1'", "a", "1"),
    ],
)
def test_a_value_is_read_as_in_a_params_file(word: str, key: str, value: object) -> None:
    assert params_settings.parse(word) == params_settings.Setting(key, value)


@pytest.mark.parametrize("word", ["a", "=1", "a=", "a..b=1", "a b=1"])
def test_another_form_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--set: must be KEY=VALUE"):
        params_settings.parse(word)


def test_what_is_not_yaml_is_refused_with_its_key() -> None:
    with pytest.raises(UsageError, match=r"--set a\.b: line 1, column 3: not YAML"):
        params_settings.parse("a.b=[1")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("1,2", ["1", "2"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("{a: 1, b: 2},3", ["{a: 1, b: 2}", "3"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("1,,2", ["1", "", "2"]),
    ],
)
def test_commas_separate_values_outside_of_brackets(text: str, values: list[str]) -> None:
    assert params_settings.split_values(text) == values


def test_settings_reach_their_sections() -> None:
    params: dict[str, Any] = {"a": {"b": 1, "c": 2}, "d": None}
    words = ["a.b=3", "d.e.f=4", "g=5"]
    params_settings.apply(params, [params_settings.parse(word) for word in words])
    assert params == {"a": {"b": 3, "c": 2}, "d": {"e": {"f": 4}}, "g": 5}
    with pytest.raises(UsageError, match=r"--set a\.b\.x: a\.b is a value, not a section"):
        params_settings.apply(params, [params_settings.parse("a.b.x=1")])
