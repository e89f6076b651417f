"""Nested values by path, and their differences."""

from csrun.base.flat_values import Difference, differences, flattened

VALUES = {"a": {"b": [1, {"c": None}], "d": {}}, "e": "x", "f": []}


def test_leaves_have_paths() -> None:
    assert flattened(VALUES) == {"a.b[0]": 1, "a.b[1].c": None, "a.d": {}, "e": "x", "f": []}
    assert flattened(3) == {"": 3}


def test_differences() -> None:
    assert differences({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}) == [
        Difference("b", "2", "4"),
        Difference("c", "3", None),
        Difference("d", None, "5"),
    ]
    assert differences({"a": 1}, {"a": 1.0}) == []
    assert differences({"a": 1}, {"a": True}) == [Difference("a", "1", "True")]
