"""Data of one screen of `csrun top`; `-o json` prints it as it is."""

from datetime import datetime

import msgspec

from csrun.jobs.overview import SystemStatus


class JobLine(msgspec.Struct, frozen=True):
    """A job of the site; why: reason why it is pending, or why it failed."""

    job_id: int
    name: str
    user: str
    state: str
    nodes: int
    system: str
    submitted: datetime
    started: datetime | None
    ended: datetime | None
    elapsed_s: float
    why: str

    @property
    def is_active(self) -> bool:
        """True for a pending or running job."""
        return self.ended is None


class LossPoint(msgspec.Struct, frozen=True):
    """Loss at a logged step."""

    step: int
    loss: float


class TimeShare(msgspec.Struct, frozen=True):
    """A row of the ledger, over the displayed points. Units: seconds"""

    row: str
    seconds: float
    share: float


class RunProgress(msgspec.Struct, frozen=True):
    """Progress of a run; None for values that its job has not published.

    what: e.g. `training`.
    detail: its loss and largest wait, as logged by its chief.
    rate, global_rate: as in the log lines.
    losses, time: of the newest points in the events.
    loss_scale: of mixed precision.

    Units: rates in samples per second; updated, ends: local times
    """

    what: str
    step: int
    last_step: int | None = None
    steps_per_s: float | None = None
    loss: float | None = None
    rate: float | None = None
    global_rate: float | None = None
    input_share: float | None = None
    detail: str = ""
    updated: datetime | None = None
    ends: datetime | None = None
    losses: tuple[LossPoint, ...] = ()
    time: tuple[TimeShare, ...] = ()
    loss_scale: float | None = None


class TaskLine(msgspec.Struct, frozen=True):
    """A task of the job; rank: None for a wafer process.

    state: running, stopped, ended, failed or unknown.
    cpu_percent: percent of one CPU, in the last seconds; None, like the memory, if nothing recent
        is known.
    is_straggler: it is the streamer that delays the steps.
    log: name of its log.
    """

    name: str
    rank: int | None
    role: str
    node: str
    state: str
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    is_straggler: bool = False
    log: str = ""


class JobDetail(msgspec.Struct, frozen=True):
    """One job: its run, its tasks, and the end of its log. folder: its files in csrun's state.

    can_read: whether this account may read the job's folder, and the folder still exists.
    """

    job_id: int
    can_read: bool
    folder: str
    model_dir: str | None = None
    run: RunProgress | None = None
    tasks: tuple[TaskLine, ...] = ()
    log: tuple[str, ...] = ()


class SiteSnapshot(msgspec.Struct, frozen=True):
    """A site at a moment, and one of its jobs."""

    site: str
    taken: datetime
    systems: tuple[SystemStatus, ...]
    jobs: tuple[JobLine, ...]
    job: JobDetail | None = None
