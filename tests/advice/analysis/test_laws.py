"""Laws are recovered from points that were made by them, and the simplest of equals is taken."""

from math import exp

import numpy as np
import pytest
from support.pipelines import Curve, points_of

from csrun.advice.analysis.laws import Fit, LawName, disturbance, fit
from csrun.advice.measurements import Point

RATE, CAP, SIGMA, KAPPA = 1200.0, 5000.0, 0.15, 0.01
MANY = (1, 2, 3, 4, 6, 8, 12, 16)
LAWS: dict[LawName, Curve] = {
    LawName.LINEAR: lambda n: RATE * n,
    LawName.ROOFLINE: lambda n: min(RATE * n, CAP),
    LawName.AMDAHL: lambda n: RATE * n / (1 + SIGMA * (n - 1)),
    LawName.USL: lambda n: RATE * n / (1 + SIGMA * (n - 1) + KAPPA * n * (n - 1)),
}


def fitted(curve: Curve, tasks: tuple[int, ...] = MANY) -> Fit:
    return fit(points_of(curve, tasks, busy=lambda n: 0.0), machine_cpus=2)


def noisy(curve: Curve, seed: int, spread: float = 0.02) -> Curve:
    """The curve as a measurement sees it."""
    generator = np.random.default_rng(seed)
    return lambda n: curve(n) * exp(generator.normal(0, spread))


@pytest.mark.parametrize("name", LawName)
def test_each_law_is_found_in_its_own_points(name: LawName) -> None:
    found = fitted(LAWS[name])
    law = found.law
    assert law.name is name
    assert law.rate == pytest.approx(RATE)
    assert law.cap == (pytest.approx(CAP) if name is LawName.ROOFLINE else None)
    contended = name in (LawName.AMDAHL, LawName.USL)
    assert law.sigma == (pytest.approx(SIGMA) if contended else 0)
    assert law.kappa == (pytest.approx(KAPPA) if name is LawName.USL else 0)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert [point.deviation for point in found.points] == pytest.approx([0] * 8, abs=1e-6)


@pytest.mark.parametrize("name", LawName)
def test_noise_of_two_percent_moves_no_prediction_by_more_than_ten(name: LawName) -> None:
    for seed in range(20):
        law = fitted(noisy(LAWS[name], seed)).law
        assert [law.at(n) for n in MANY] == pytest.approx([LAWS[name](n) for n in MANY], rel=0.1)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((100.0,), LawName.LINEAR),
        ((100.0, 200.0), LawName.LINEAR),
        ((100.0, 196.0), LawName.LINEAR),
        ((100.0, 150.0), LawName.ROOFLINE),
        ((100.0, 100.0), LawName.ROOFLINE),
        ((100.0, 200.0, 300.0), LawName.LINEAR),
        ((100.0, 200.0, 210.0), LawName.ROOFLINE),
    ],
)
def test_one_two_or_three_points_do(rates: tuple[float, ...], expected: LawName) -> None:
    tasks = tuple(range(1, len(rates) + 1))
    found = fitted(lambda n: rates[n - 1], tasks)
    assert found.law.name is expected
    assert [found.law.at(n) for n in tasks] == pytest.approx(rates, rel=0.05)
    assert (found.error is None) == (len(rates) < 3)


def test_nothing_is_promised_above_the_point_with_the_most_tasks() -> None:
    for seed in range(20):
        found = fitted(noisy(LAWS[LawName.ROOFLINE], seed), (1, 2, 4, 5))
        assert found.law.at(5) <= found.points[-1].measured * exp(0.05) * 1.000001


def test_the_machines_cpus_are_a_ceiling_for_workers_that_were_not_measured() -> None:
    """A sample takes 0.25 / 1000 CPU seconds: two CPUs can make 8000 a second, and no more."""
    found = fit(points_of(lambda n: 1000.0 * n, (1, 2, 4), busy=lambda n: 0.25 * n), 2)
    assert found.law.name is LawName.LINEAR
    assert found.at(6) == pytest.approx(6000)
    assert found.at(100) == pytest.approx(8000)
    assert found.most_tasks == 4


@pytest.mark.parametrize(
    ("tasks", "cpus", "busy", "starved", "factor"),
    [
        (1, 1, 1.0, 0.0, 1.0),
        (1, 1, 0.8, 0.2, 1.25),
        (4, 1, 2.0, 2.0, 1.0),  # in each other's way: the machine has two
        (4, 1, 0.5, 3.5, 4.0),
        (1, 1, 1.0, 1.0, 1.0),  # two threads of a task with one CPU
        (4, 1, 0.02, 0.0, 1.0),
        (1, 1, 0.1, 0.02, 1 / 0.98),  # asleep most of the time: it lost two hundredths
        (2, 1, 0.2, 1.0, 2.0),  # half of the time ready, a tenth of it running
        (2, 1, 0.0, 0.0, 1.0),
    ],
)
def test_cpus_that_other_work_took_are_told_from_those_that_are_not_there(
    tasks: int, cpus: int, busy: float, starved: float, factor: float
) -> None:
    point = Point(tasks, cpus, 1000.0, busy, 1.0, (), starved)
    assert disturbance(point, machine_cpus=2) == pytest.approx(factor)


def test_the_law_is_that_of_a_machine_without_other_work() -> None:
    """It takes half of the CPU time that one or two tasks want, and more of what four want."""
    got = {1: 0.5, 2: 1.0, 4: 0.4}
    points = points_of(
        lambda n: RATE * got[n], (1, 2, 4), busy=got.__getitem__, starved=lambda n: n - got[n]
    )
    found = fit(points, machine_cpus=2)
    assert [found.law.at(n) for n in (1, 2, 4)] == pytest.approx([RATE, 2 * RATE, 2 * RATE])
    assert [point.measured for point in found.points] == [RATE * share for share in got.values()]
