"""Rate and GlobalRate against their formulas, with a fake clock."""

from collections.abc import Callable, Iterator

import pytest

from csrun.records.performance import Rates, RateTracker


def clock(*times: float) -> Callable[[], float]:
    ticks: Iterator[float] = iter(times)
    return lambda: next(ticks)


def test_the_first_rate_is_that_of_the_interval() -> None:
    tracker = RateTracker(clock(10.0, 12.0))
    tracker.received(256)
    assert tracker.log() == Rates(rate=128.0, global_rate=128.0)


def test_later_rates_are_smoothed_and_the_global_one_is_not() -> None:
    tracker = RateTracker(clock(0.0, 1.0, 3.0, 4.0))
    expected = None
    for total, local, elapsed in ((100, 100.0, 1.0), (500, 200.0, 3.0), (510, 10.0, 4.0)):
        tracker.received(total)
        rates = tracker.log()
        expected = local if expected is None else (1 - 0.4) * local + 0.4 * expected
        assert rates.rate == pytest.approx(expected, rel=1e-12)
        assert rates.global_rate == pytest.approx(total / elapsed, rel=1e-12)


def test_only_what_has_been_received_counts() -> None:
    tracker = RateTracker(clock(0.0, 2.0, 4.0))
    tracker.received(50)
    tracker.received(100)
    assert tracker.log().rate == 50.0
    assert tracker.log() == Rates(rate=pytest.approx(0.4 * 50), global_rate=25.0)


def test_no_time_is_no_rate() -> None:
    tracker = RateTracker(clock(1.0, 1.0))
    tracker.received(10)
    assert tracker.log() == Rates(0.0, 0.0)


def test_a_burst_of_outputs_makes_rate_spike_and_settle_and_moves_global_rate_little() -> None:
    """Outputs of five steps are delayed, as by a concurrent checkpoint, and arrive at once."""
    step_s, samples = 1.0, 100
    steady = [step_s * step for step in range(1, 21)]
    burst = [25.0 + 0.01 * number for number in range(5)]
    after = [step_s * step for step in range(26, 41)]
    tracker = RateTracker(clock(0.0, *steady, *burst, *after))
    found = []
    for received in range(1, 41):
        tracker.received(samples * received)
        found.append(tracker.log())
    spike = found[20:25]
    assert spike[0].rate < 100.0  # late
    assert max(rates.rate for rates in spike) > 10 * 100.0
    assert found[-1].rate == pytest.approx(100.0, rel=0.01)
    assert all(80.0 < rates.global_rate <= 101.0 for rates in found)
    assert found[24].global_rate == pytest.approx(2500 / 25.04)
