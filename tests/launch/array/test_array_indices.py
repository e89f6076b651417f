"""Indices of an array in Slurm's notation."""

import pytest

from csrun.base.errors import UsageError
from csrun.launch.array.array_indices import ArrayIndices, parse


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("1-4", (1, 2, 3, 4), None),
        ("1,3,5", (1, 3, 5), None),
        ("0-15:4", (0, 4, 8, 12), None),
        ("0-15:5%2", (0, 5, 10, 15), 2),
        ("7", (7,), None),
        ("5,1-2", (5, 1, 2), None),
    ],
)
def test_forms(text: str, indices: tuple[int, ...], at_once: int | None) -> None:
    assert parse(text) == ArrayIndices(indices, at_once)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be indices as 1-8"),
        ("a", "must be indices as 1-8"),
        ("1-", "must be indices as 1-8"),
        ("1,,2", "must be indices as 1-8"),
        ("-1", "must be indices as 1-8"),
        ("1-8%", "%N must be a whole number >= 1"),
        ("1-8%0", "%N must be a whole number >= 1"),
        ("3-1", "3-1 is an empty range"),
        ("1-3:0", "1-3:0 is an empty range"),
        ("1,2,1", "index 1 is given twice"),
        ("0-1000", "at most 1000 elements"),
        ("0-999999999", "must be at most 999999"),
    ],
)
def test_another_form_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--array: .*{message}"):
        parse(text)
