"""The limiting stage, the advice for it, and the speedup it needs."""

import re

import pytest
from support.pipelines import STAGES, measured, points_of

from csrun.advice.analysis.bottleneck import limiting, stages_of
from csrun.advice.analysis.scaling import Saturation, ScalingLimit
from csrun.advice.measurements import StageCost

SLEEPS = (StageCost("batch", 1e-6, 1e-6), StageCost("map nap", 16e-6, 0.1e-6))


def test_it_is_the_stage_with_the_largest_share_of_the_least_disturbed_worker() -> None:
    oversubscribed = tuple(StageCost(stage.name, 1e-3, 1e-6) for stage in STAGES)
    points = (
        *points_of(float, (4,), stages=oversubscribed),
        *points_of(float, (1,), cpus=2, stages=oversubscribed),
        *points_of(float, (1,), cpus=1),
    )
    stages = stages_of(measured(points))
    assert [stage.name for stage in stages] == ["shuffle", "map load", "batch"]
    assert [stage.share for stage in stages] == pytest.approx([0.1, 0.7, 0.2])
    found = limiting(stages, Saturation.NOTHING, None, False, 1.0)
    assert found is not None
    assert found.stage.name == "map load"
    assert (found.stage.wall_us, found.stage.cpu_us) == (pytest.approx(7), pytest.approx(6.5))


@pytest.mark.parametrize(
    ("stages", "saturation", "parallel", "words"),
    [
        (STAGES, Saturation.CPUS, False, "computes, on one CPU per worker: use more tasks"),
        (STAGES, Saturation.CPUS, True, "computes, on several CPUs .* use more CPUs per task"),
        (SLEEPS, Saturation.NOTHING, False, "waits: use more tasks.* more CPUs do not help"),
        (SLEEPS, Saturation.RESOURCE, False, "shared by all workers: use faster storage"),
    ],
)
def test_the_advice_is_for_what_it_does(
    stages: tuple[StageCost, ...], saturation: Saturation, parallel: bool, words: str
) -> None:
    of_one = stages_of(measured(points_of(float, (1,), stages=stages)))
    found = limiting(of_one, saturation, None, parallel, 1.0)
    assert found is not None
    assert re.search(words, found.advice)


def test_a_cpu_bound_input_has_the_stage_that_computes_most_and_no_word_of_waiting() -> None:
    """One stage sleeps for 16 us, another computes for 1 us: 10/11 of the CPU time."""
    stages = stages_of(measured(points_of(float, (1,), stages=SLEEPS)))
    found = limiting(stages, Saturation.CPUS, ScalingLimit.CPUS, False, 2.0)
    assert found is not None
    assert (found.stage.name, found.is_cpu_bound) == ("batch", True)
    assert found.share == pytest.approx(10 / 11)
    assert found.speedup == pytest.approx(10 / 11 / (1 / 2 - 1 / 11))
    assert "wait" not in found.advice
    assert "more tasks do not help" in found.advice


def test_a_stage_that_waits_is_never_told_that_cpus_do_not_help_beside_full_ones() -> None:
    stages = stages_of(measured(points_of(float, (1,), stages=SLEEPS)))
    found = limiting(stages, Saturation.CPUS, None, False, 1.0)
    assert found is not None
    assert found.stage.name == "map nap"
    assert "CPUs do not help" not in found.advice


@pytest.mark.parametrize(
    ("limit", "words"),
    [(ScalingLimit.LINK, "link to the CS system is saturated"), (ScalingLimit.FILES, "more files"),
     (ScalingLimit.NODES, "more tasks")],
)  # fmt: skip
def test_the_advice_follows_the_limit_of_the_layout(limit: ScalingLimit, words: str) -> None:
    stages = stages_of(measured(points_of(float, (1,))))
    found = limiting(stages, Saturation.NOTHING, limit, False, 2.0)
    assert found is not None
    assert words in found.advice


def test_a_stage_that_lacked_a_cpu_is_not_waiting() -> None:
    """Other processes took three quarters of its CPU."""
    stages = (StageCost("map sum", 4e-6, 1e-6),)
    starved = points_of(float, (1,), busy=lambda n: 0.25, stages=stages, starved=lambda n: 0.75)
    assert [stage.waits for stage in stages_of(measured(starved))] == [False]
    waiting = points_of(float, (1,), busy=lambda n: 0.25, stages=stages)
    assert [stage.waits for stage in stages_of(measured(waiting))] == [True]


@pytest.mark.parametrize(
    ("missing", "speedup"),
    [
        (1.0, 1.0),
        (1.25, 0.7 / (1 / 1.25 - 0.3)),  # 0.3 + 0.7 / 1.4 = 1 / 1.25
        (3.0, 21.0),  # 0.3 + 0.7 / 21 = 1 / 3
        (4.0, None),  # the others alone take 0.3 of the time
    ],
)
def test_the_speedup_that_it_needs_follows_amdahl(missing: float, speedup: float | None) -> None:
    stages = stages_of(measured(points_of(float, (1,))))
    found = limiting(stages, Saturation.NOTHING, None, False, missing)
    assert found is not None
    assert found.speedup == (None if speedup is None else pytest.approx(speedup))


def test_measurements_without_stages_have_no_limiting_one() -> None:
    stages = stages_of(measured(points_of(float, stages=())))
    assert limiting(stages, Saturation.CPUS, ScalingLimit.CPUS, False, 2) is None
