"""Batches of a loader, as made by streamers for a program."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from csrun.pytorch.step.variant import Batches


@pytest.mark.parametrize(
    ("sizes", "rows", "first", "last"),
    [
        ([8, 8, 5], 8, 4, 9),  # whole batches, of all passes whose order is known
        ([8, 8, 5], 5, 5, 6),  # goes on with the last batch of a pass
        ([8, 8, 5], 8, 9, 9),  # of a pass whose order is not known
        ([8, 4, 4, 8, 4], 4, 6, 8),  # before a larger one
        ([8, 4, 4], 4, 4, 6),
    ],
)
def test_batches_end_before_one_that_the_program_cannot_take(
    sizes: list[int], rows: int, first: int, last: int
) -> None:
    orders = SimpleNamespace(rows=lambda number, position: sizes[position], end=lambda: 3)
    loader = SimpleNamespace(orders=orders, length=len(sizes))
    assert Batches(loader, 0).last_for(rows, first) == last  # type: ignore[arg-type]
