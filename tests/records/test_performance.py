"""Rate and GlobalRate against their formulas, with a clock of our own."""

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
