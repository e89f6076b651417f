"""Numbers of a report: significant digits, and round ones on an axis."""

import numpy as np
import pytest

from csrun.advice.numbers import deviation, round_ticks, spread, with_spread


@pytest.mark.parametrize(
    ("value", "spread", "expected"),
    [
        (20134.2, 5812.0, "20,100 ± 5,800"),
        (157.12, 3.21, "157.1 ± 3.2"),
        (0.6, 0.1, "0.60 ± 0.10"),
        (7.0, 0.0, "7.00"),  # not known
        (0.6, 0.004, "0.60"),  # of no digit that is shown
    ],
)
def test_a_value_has_the_digits_that_its_spread_leaves_it(
    value: float, spread: float, expected: str
) -> None:
    assert with_spread(value, spread) == expected


def test_a_deviation_of_nothing_has_one_sign() -> None:
    assert [deviation(share) for share in (-1e-9, 0.0, 1e-9, -0.125)] == [*["+0.0%"] * 3, "-12.5%"]


def test_the_spread_is_the_standard_deviation_but_for_stalls() -> None:
    normal = np.random.default_rng(1).normal(5.0, 2.0, 2000).tolist()
    assert spread(normal) == pytest.approx(2.0, rel=0.1)
    assert spread([*normal, *[1000.0] * 5]) == pytest.approx(2.0, rel=0.1)
    assert spread([1.0, 3.0] * 9) == 1.0
    assert spread([1.0]) == spread([]) == 0


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (1_734_796, (0, 500_000, 1_000_000, 1_500_000)),
        (200_000, (0, 50_000, 100_000, 150_000, 200_000)),
        (64, (0, 20, 40, 60)),
        (3, (0, 1, 2, 3)),
        (0.3, (0, 0.1, 0.2, 0.3)),
    ],
)
def test_ticks_are_round(highest: float, expected: tuple[float, ...]) -> None:
    assert round_ticks(highest, 6) == pytest.approx(expected)
