"""Verdict on a run's input from the wafer's measurements; expected values by hand."""

import pytest

from csrun.runtime.input_bound import Bound, InputUse, streamers_needed
from csrun.runtime.wire.messages import StepsDone, StreamerUse


def verdict_of(wait_s: float, produce_s: tuple[float, ...], seconds: float = 10.0):
    """Verdict on 100 steps with streamers that took this long for equal shares of the batches."""
    count = len(produce_s)
    use = InputUse(count)
    use.add(
        StepsDone(
            100,
            12_800,
            seconds,
            tuple(
                StreamerUse(turn, 100 // count, wait_s / count, time, turn, 0.01)
                for turn, time in enumerate(produce_s)
            ),
        )
    )
    return use.verdict()


@pytest.mark.parametrize(
    ("wait_s", "bound"),
    [
        (0.0, Bound.NOT),
        (0.49, Bound.NOT),
        (0.51, Bound.MODERATE),
        (1.99, Bound.MODERATE),
        (2.01, Bound.BOUND),
        (9.9, Bound.BOUND),
    ],
)
def test_five_and_twenty_percent_of_the_steps_time_are_the_borders(wait_s, bound):
    verdict = verdict_of(wait_s, (1.0, 1.0))
    assert verdict.bound is bound
    assert verdict.wait_share == pytest.approx(wait_s / 10)


def test_streamers_alike_are_judged_by_their_mean_times():
    """100 steps compute for 2 s: the wafer needs 50 batches/s, 12.5 from each of 4 streamers.

    A streamer makes 25 batches in 8 s: 3.125/s. 50 / 3.125 = 16 of them, 18 with the margin.
    """
    verdict = verdict_of(8.0, (8.0, 8.0, 8.0, 8.0))
    assert verdict.demand == pytest.approx(12.5)
    assert verdict.slowest.delivered == pytest.approx(3.125)
    assert verdict.needed == 18
    assert not verdict.is_alone
    assert not verdict.is_fast_enough


def test_a_slow_streamer_among_quick_ones_is_named():
    verdict = verdict_of(8.0, (0.5, 0.5, 8.0, 0.5))
    assert verdict.is_alone
    assert verdict.slowest.streamer == 2
    assert verdict.slowest.stage == 2
    assert verdict.needed == 2  # all like the others: 50 batches/s each, as the wafer asks of all


def test_streamers_quick_enough_are_not_the_cause():
    """They make 50 batches in 1 s; the wafer needs 6.25 from each."""
    verdict = verdict_of(2.0, (1.0, 1.0))
    assert verdict.bound is Bound.MODERATE
    assert verdict.is_fast_enough


def test_parts_of_a_run_add_up():
    use = InputUse(1)
    for wait_s in (0.0, 1.0, 2.0):
        use.add(StepsDone(10, 0, 3.0, (StreamerUse(0, 10, wait_s, 2.0, -1, 0.0),)))
    verdict = use.verdict()
    assert verdict.wait_share == pytest.approx(3 / 9)
    assert verdict.slowest.delivered == pytest.approx(30 / 6)
    assert verdict.demand == pytest.approx(30 / 6)


def test_without_a_step_there_is_no_verdict():
    use = InputUse(2)
    assert use.verdict() is None
    use.add(StepsDone(0, 0, 0.1, (), finished=True))
    assert use.verdict() is None


@pytest.mark.parametrize(
    ("asked", "delivered", "needed"), [(85, 12, 8), (1, 1000, 1), (80, 10, 9), (100, 100, 2)]
)
def test_so_many_streamers_feed_the_wafer(asked, delivered, needed):
    """ceil(1.125 * needed / delivered)."""
    assert streamers_needed(asked, delivered) == needed
