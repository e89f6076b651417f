"""Progress of one run: its job's telemetry, and the scalars of its events as they are added."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from csrun.context import Telemetry
from csrun.records.scalar_events import EventTail, begun_s, event_files
from csrun.watch.logged_steps import LoggedSteps
from csrun.watch.site_snapshot import LossPoint, RunProgress

CLOCKS_S = 1  # names of files have a resolution of one second


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


class RunValues:
    """Values of one job's run, read as they grow.

    model_dir: of the run, which may have events of earlier jobs; those begin before `since`.
    logged: steps that the latest `progress` has read.
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
        self.logged = LoggedSteps(extent.points)

    def end(self, until: datetime) -> None:
        """Ignore events of runs that begin later."""
        self._until_s = until.timestamp() + CLOCKS_S

    def progress(self, telemetry: Telemetry | None) -> RunProgress | None:
        """Return the current progress; None before the run has published anything."""
        self._read()
        if telemetry is None and not self.logged:
            return None
        return progress_of(self.logged, telemetry)

    def _read(self) -> None:
        files = [path for path in event_files(self._model_dir) if self._is_ours(path)]
        for path in files[-(self._extent.files or 0) :]:
            tail = self._tails.setdefault(path, EventTail(path, self._extent.first_bytes))
            for event in tail.read():
                self.logged.add(event.step, event.wall_s, event.tag, event.value)

    def _is_ours(self, path: Path) -> bool:
        begun = begun_s(path)
        return self._since_s <= begun and (self._until_s is None or begun <= self._until_s)


def progress_of(logged: LoggedSteps, telemetry: Telemetry | None) -> RunProgress:
    """Return progress from logged steps and, of a running job, its telemetry; at least one
    exists.
    """
    last = logged.last
    newest = {} if last is None else last.values
    found = RunProgress(
        "training",
        0 if last is None else last.step,
        loss=newest.get("loss"),
        steps_per_s=logged.steps_per_s(),
        rate=newest.get("local_samples_per_sec"),
        global_rate=newest.get("avg_samples_per_sec"),
        losses=logged.losses,
        time=logged.time_shares(),
        updated=None if last is None else _moment(last.wall_s),
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


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
