"""Messages about one run for the pages that show it: one read for all pages, and only changes."""

import json
import time
from collections.abc import Sequence
from itertools import takewhile
from threading import Lock
from weakref import WeakValueDictionary

from csrun.base.errors import CsrunError
from csrun.dashboard.run_catalog import Point, RunCatalog, RunHistory, json_of
from csrun.launch.process.usage_log import LoadSample

FAILED_S = 10.0
LIVE_STATES = frozenset({"RUNNING", "PENDING", "running"})
# time until the next read as a multiple of that of the last one, so that reading takes less than
# 0.5 % of a CPU, and its maximum
IDLE_SHARE, LIVE_SHARE = 400, 200
IDLE_S, LIVE_S = 15.0, 5.0


class _SharedRun:
    """One run, as its pages know it; read when it is due.

    version: number of reads that found a change, or failed.
    problem: why the latest read failed.
    """

    def __init__(self, catalog: RunCatalog, run: str) -> None:
        self._catalog, self._run = catalog, run
        self._due_s = -float("inf")
        self.version = 0
        self.problem = self.detail = ""
        self.points: list[Point] = []
        self.usage: list[LoadSample] = []

    def read_if_due(self) -> None:
        """Read the run, unless the latest read was a short time ago."""
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        try:
            # the last point may have got values
            history = self._catalog.detail(self._run, max(0, len(self.points) - 1))
        except (CsrunError, OSError) as error:
            self.version, self.problem = self.version + 1, str(error)
            self._due_s = time.monotonic() + FAILED_S
            return
        self._take(history)
        ended_s = time.monotonic()
        is_live = history.detail.state in LIVE_STATES
        share, most_s = (LIVE_SHARE, LIVE_S) if is_live else (IDLE_SHARE, IDLE_S)
        self._due_s = ended_s + min(most_s, share * (ended_s - began_s))

    def _take(self, history: RunHistory) -> None:
        detail, after = json_of(history.detail), history.after
        is_new = (detail, history.usage) != (self.detail, self.usage)
        if is_new or history.points != self.points[after:] or self.problem:
            self.version += 1
        self.problem, self.detail, self.usage = "", detail, history.usage
        self.points[after:] = history.points


class RunReader:
    """Runs that pages show. lock: of the catalog."""

    def __init__(self, catalog: RunCatalog, lock: Lock) -> None:
        self._catalog, self._lock = catalog, lock
        self._shared: WeakValueDictionary[str, _SharedRun] = WeakValueDictionary()

    def feed(self, run: str) -> "RunFeed":
        """Return a page's messages about a run."""
        with self._lock:
            shared = self._shared.get(run) or _SharedRun(self._catalog, run)
            self._shared[run] = shared
        return RunFeed(shared, self._lock)


class RunFeed:
    """Messages about one run for one page: changes since the previous message."""

    def __init__(self, shared: _SharedRun, lock: Lock) -> None:
        self._shared, self._lock = shared, lock
        self._version = self._points = 0
        self._usage: list[LoadSample] = []

    def message(self) -> tuple[str, str] | None:
        """Return an event's name and JSON, of the run or of a problem; None if nothing has changed.

        `points` are the logged steps from number `after` on, since the last one may have new
        values; `usage` the samples of the tasks from number `usage_after` on, since a long file is
        thinned out.
        """
        with self._lock:
            shared = self._shared
            shared.read_if_due()
            if shared.version == self._version:
                return None
            self._version = shared.version
            if shared.problem:
                return "problem", json.dumps(shared.problem)
            count, detail, usage = len(shared.points), shared.detail, shared.usage
            after = max(0, self._points - 1) if self._points <= count else 0
            points = shared.points[after:]
        self._points = count
        usage_after = _count_of_equal(self._usage, usage)
        self._usage = usage
        more = {
            "after": after,
            "points": points,
            "usage_after": usage_after,
            "usage": usage[usage_after:],
        }
        return "run", f'{{"detail":{detail},{json_of(more)[1:]}'


def _count_of_equal(known: Sequence[LoadSample], now: Sequence[LoadSample]) -> int:
    """Return the number of samples at the start of both lists with equal times."""
    pairs = zip(known, now, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].taken_s == pair[1].taken_s, pairs))
