"""Waiting for a phase of a job."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from csrun.launch import waiting
from csrun.launch.waiting import AwaitedPhase, wait_for

NOW = datetime.now(UTC)


def job(state: str) -> Any:
    ended = NOW if state not in ("PENDING", "RUNNING") else None
    return SimpleNamespace(state=state, ended=ended, elapsed_s=0.0 if state == "PENDING" else 1.0)


@dataclass
class Clock:
    """Clock that advances only by sleeping."""

    now_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(waiting.time, "sleep", found.sleep)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: found.now_s)
    return found


def states(clock: Clock, *changes: tuple[float, str]) -> Callable[[], Any]:
    """Job that is in a state from a time on."""
    return lambda: job([state for at_s, state in changes if at_s <= clock.now_s][-1])


@pytest.mark.parametrize(
    ("end", "phase", "is_met"),
    [
        ("COMPLETED", AwaitedPhase.ENDED, True),
        ("FAILED", AwaitedPhase.ENDED, True),
        ("COMPLETED", AwaitedPhase.COMPLETED, True),
        ("FAILED", AwaitedPhase.COMPLETED, False),
    ],
)
def test_the_end_of_a_job(clock: Clock, end: str, phase: AwaitedPhase, is_met: bool) -> None:
    look = states(clock, (0, "PENDING"), (5, "RUNNING"), (60, end))
    waited = wait_for(look, phase, None)
    assert (waited.job.state, waited.is_met) == (end, is_met)
    assert 60 <= clock.now_s <= 62


def test_a_job_that_runs(clock: Clock) -> None:
    look = states(clock, (0, "PENDING"), (5, "RUNNING"), (60, "COMPLETED"))
    assert wait_for(look, AwaitedPhase.RUNNING, None).is_met
    assert 5 <= clock.now_s <= 7
    assert not wait_for(states(clock, (0, "CANCELLED")), AwaitedPhase.RUNNING, None).is_met


def test_the_time_is_over(clock: Clock) -> None:
    waited = wait_for(states(clock, (0, "RUNNING")), AwaitedPhase.ENDED, 10)
    assert (waited.job.state, waited.is_met) == ("RUNNING", False)
    assert clock.now_s == pytest.approx(10)
