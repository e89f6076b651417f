"""Messages to the pages of a run, and how often the run is read."""

import json
from threading import Lock
from typing import Any, cast

import pytest

from csrun.base.errors import CsrunError
from csrun.dashboard import run_feed
from csrun.dashboard.run_catalog import Point, RunCatalog, RunHistory
from csrun.dashboard.run_detail import RunDetail


class Catalog:
    """A run with these logged steps; counts reads, which take a millisecond each."""

    def __init__(self, clock: list[float], *steps: int) -> None:
        self.clock, self.steps = clock, [*steps]
        self.asked_after: list[int] = []
        self.is_down = False

    def detail(self, run: str, after: int) -> RunHistory:
        self.asked_after.append(after)
        self.clock[0] += 1e-3
        if self.is_down:
            raise CsrunError("Slurm does not answer")
        after = after if after < len(self.steps) else 0
        points: list[Point] = [(step, float(step), {"loss": 1.0}) for step in self.steps[after:]]
        return RunHistory(RunDetail(run, "digits", "RUNNING"), points, [], after)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Clock in seconds, set by the test."""
    clock = [0.0]
    monkeypatch.setattr(run_feed.time, "monotonic", lambda: clock[0])
    return clock


def read(feed: run_feed.RunFeed) -> tuple[int, list[int]] | str | None:
    """Number of a message's first point and the steps; or the text of a problem."""
    if (message := feed.message()) is None:
        return None
    name, data = message[0], cast(Any, json.loads(message[1]))
    return data if name == "problem" else (data["after"], [point[0] for point in data["points"]])


def test_one_read_is_for_all_pages_and_a_message_has_only_what_is_new(now: list[float]) -> None:
    catalog = Catalog(now, 10, 20)
    reader = run_feed.RunReader(cast(RunCatalog, catalog), Lock())
    first, second = reader.feed("7"), reader.feed("7")
    assert (read(first), read(second)) == ((0, [10, 20]), (0, [10, 20]))
    assert (read(first), read(second)) == (None, None)
    catalog.steps.append(30)
    now[0] += 1
    assert (read(first), read(second), read(reader.feed("7"))) == (
        (1, [20, 30]), (1, [20, 30]), (0, [10, 20, 30]),
    )  # fmt: skip
    assert catalog.asked_after == [0, 1]  # what has been read is not read again
    now[0] += 1
    assert read(first) is None
    catalog.steps = [1]
    now[0] += 1
    assert read(first) == (0, [1])


def test_a_problem_and_its_end_are_told_to_all_pages(now: list[float]) -> None:
    catalog = Catalog(now, 10)
    reader = run_feed.RunReader(cast(RunCatalog, catalog), Lock())
    feeds = [reader.feed("7"), reader.feed("7")]
    assert [read(feed) for feed in feeds] == [(0, [10])] * 2
    catalog.is_down = True
    now[0] += 1
    assert [read(feed) for feed in feeds] == ["Slurm does not answer"] * 2
    catalog.is_down = False
    now[0] += 1
    assert [read(feed) for feed in feeds] == [None, None]
    now[0] += run_feed.FAILED_S
    assert [read(feed) for feed in feeds] == [(0, [10])] * 2
