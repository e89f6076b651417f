"""Emitters that take several of ATen's arguments at once."""

from typing import NamedTuple

from csrun.pytorch.operators.base import packed


class Sizes(NamedTuple):
    rows: int
    columns: int = 2
    depth: int = 3


def last(e, x, sizes: Sizes, *, scale=1):
    return e, x, sizes, scale


def middle(e, x, sizes: Sizes, wanted):
    return e, x, sizes, wanted


def test_arguments_fill_the_fields_of_a_struct():
    assert packed(last)("e", "x", 5) == ("e", "x", (5, 2, 3), 1)
    assert packed(last)("e", "x", 5, 6, 7, scale=8) == ("e", "x", (5, 6, 7), 8)
    assert packed(middle)("e", "x", 5, 6, 7, "w") == ("e", "x", (5, 6, 7), "w")
