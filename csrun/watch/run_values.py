"""Progress of one run: its job's telemetry, and the scalars of its events as they are added."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from csrun.context import Telemetry
from csrun.records.ledger import Row
from csrun.records.scalar_events import EventTail, ScalarEvent, begun_s, event_files
from csrun.watch.site_snapshot import LossPoint, RunProgress, TimeShare

RATE_POINTS = 10  # newest points from which steps per second are computed
CLOCKS_S = 1  # names of files have a resolution of one second

_SECONDS = "seconds/"


@dataclass(frozen=True)
class Extent:
    """Limits of the events that are read, newest first; None: all.

    first_bytes: of a file that is read for the first time.
    """

    points: int | None = None
    first_bytes: int | None = None
    files: int | None = None


EVERYTHING = Extent()
NEWEST = Extent(
    points=500,
    first_bytes=1 << 18,  # about 400 logged steps
    files=20,  # a script that trains in blocks has a file for each
)


class LoggedStep:
    """Values logged at one step. Units: wall_s in seconds since the epoch"""

    def __init__(self, step: int, wall_s: float) -> None:
        self.step, self.wall_s = step, wall_s
        self.values: dict[str, float] = {}


class RunValues:
    """Values of one job's run, read as they grow.

    model_dir: of the run, which may have events of earlier jobs; those begin before `since`.
    """

    def __init__(
        self,
        model_dir: Path,
        since: datetime | None,
        until: datetime | None,
        extent: Extent = NEWEST,
    ) -> None:
        self._model_dir, self._extent = model_dir, extent
        self._since_s = 0 if since is None else int(since.timestamp()) - CLOCKS_S
        self._until_s = None if until is None else until.timestamp() + CLOCKS_S
        self._tails: dict[Path, EventTail] = {}
        self._points: deque[LoggedStep] = deque(maxlen=extent.points)

    def end(self, until: datetime) -> None:
        """Ignore events of runs that begin later."""
        self._until_s = until.timestamp() + CLOCKS_S

    @property
    def points(self) -> Sequence[LoggedStep]:
        """Logged steps that the latest `progress` has read, oldest first."""
        return self._points

    def progress(self, telemetry: Telemetry | None) -> RunProgress | None:
        """Return the current progress; None before the run has published anything."""
        self._read()
        if telemetry is None and not self._points:
            return None
        return progress_of(tuple(self._points), telemetry)

    def _read(self) -> None:
        files = [path for path in event_files(self._model_dir) if self._is_ours(path)]
        for path in files[-(self._extent.files or 0) :]:
            tail = self._tails.setdefault(path, EventTail(path, self._extent.first_bytes))
            for event in tail.read():
                self._add(event)

    def _is_ours(self, path: Path) -> bool:
        begun = begun_s(path)
        return self._since_s <= begun and (self._until_s is None or begun <= self._until_s)

    def _add(self, event: ScalarEvent) -> None:
        if not self._points or self._points[-1].step != event.step:
            self._points.append(LoggedStep(event.step, event.wall_s))
        self._points[-1].values[event.tag] = event.value


def progress_of(points: tuple[LoggedStep, ...], telemetry: Telemetry | None) -> RunProgress:
    """Return progress from logged steps and, of a running job, its telemetry; at least one
    exists.
    """
    newest = points[-1].values if points else {}
    losses = [LossPoint(p.step, p.values["loss"]) for p in points if "loss" in p.values]
    speed = _steps_per_s(points)
    found = RunProgress(
        "training",
        points[-1].step if points else 0,
        loss=newest.get("loss"),
        steps_per_s=speed,
        rate=newest.get("local_samples_per_sec"),
        global_rate=newest.get("avg_samples_per_sec"),
        losses=tuple(losses),
        time=time_shares(points),
        updated=_moment(points[-1].wall_s) if points else None,
        loss_scale=newest.get("train/loss_scale"),
    )
    return found if telemetry is None else _with_telemetry(found, telemetry)


def _with_telemetry(found: RunProgress, telemetry: Telemetry) -> RunProgress:
    updated, step, loss = _moment(telemetry.updated_s), telemetry.step, telemetry.loss
    if telemetry.run == found.what and found.updated is not None and found.updated > updated:
        updated, step, loss = found.updated, found.step, found.loss  # logged since
    speed, ends = found.steps_per_s or telemetry.step_rate_per_s, None
    if telemetry.last_step is not None and speed:
        ends = updated + timedelta(seconds=(telemetry.last_step - step) / speed)
    losses = found.losses
    if loss is not None and (not losses or losses[-1].step < step):
        losses = (*losses, LossPoint(step, loss))
    return RunProgress(
        telemetry.run,
        step,
        telemetry.last_step,
        speed,
        found.loss if loss is None else loss,
        found.rate,
        found.global_rate,
        telemetry.input_share,
        telemetry.detail,
        updated,
        ends,
        losses,
        found.time,
        found.loss_scale,
    )


def _steps_per_s(points: tuple[LoggedStep, ...]) -> float | None:
    """Return steps per second over the newest points; None before there are two in order."""
    recent = points[-RATE_POINTS:]
    if len(recent) < 2:
        return None
    steps, seconds = recent[-1].step - recent[0].step, recent[-1].wall_s - recent[0].wall_s
    return steps / seconds if steps > 0 and seconds > 0 else None


def time_shares(points: Iterable[LoggedStep]) -> tuple[TimeShare, ...]:
    """Return the ledger's rows over some points, largest first."""
    seconds: dict[str, float] = {}
    for point in points:
        for tag, value in point.values.items():
            if tag.startswith(_SECONDS):
                row = tag.removeprefix(_SECONDS)
                seconds[row] = seconds.get(row, 0.0) + value
    known = {row.title for row in Row}
    total = sum(value for row, value in seconds.items() if row in known)
    if total <= 0:
        return ()
    rows = [TimeShare(row, s, s / total) for row, s in seconds.items() if row in known]
    return tuple(sorted(rows, key=lambda each: -each.seconds))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
