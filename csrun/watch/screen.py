"""Drawing of a snapshot: the lines of one frame, or of a screen of a given height.

Foreign text (names, log lines, reasons) is shown without markup, with control characters escaped,
and shortened.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from textwrap import wrap

from rich.console import Console
from rich.segment import Segment

from csrun.base.safe_text import printable_line
from csrun.records.log_lines import for_terminal
from csrun.watch.run_panel import run_lines
from csrun.watch.site_snapshot import JobDetail, JobLine, SiteSnapshot
from csrun.watch.site_tables import job_table, system_table, task_table
from csrun.watch.text_lines import (
    BOLD,
    DIM,
    MOST_CHARACTERS,
    WARNING,
    YELLOW,
    Line,
    cell,
    in_width,
    join_columns,
    width_of,
)

FRAME_JOBS = 20
FRAME_LOG_LINES = 10
RUN_COLUMNS = 58  # width that a run needs, with its tasks to the right
TASKS_GAP = 3
MOST_WHY_LINES = 2
LEAST_LOG = 2  # lines below a run; with less space, its time is one line
ALL = 1 << 20
_NO_JOBS = [Segment("no jobs yet: start one with csrun_wse", DIM)]
KEYS = "up/down: job   l: log   c: cancel   q: quit"


@dataclass(frozen=True)
class ScreenView:
    """Appearance of a screen. selected: the job whose line is marked. shows_log: instead of the
    job's run. footer: last line. asks: the footer is a question.
    """

    selected: int | None = None
    shows_log: bool = False
    footer: str = KEYS
    asks: bool = False


def frame(snapshot: SiteSnapshot, console: Console) -> list[Line]:
    """Return all of a snapshot, one part below the other; of a long queue the first jobs."""
    width = console.width
    lines = [_head(snapshot), *system_table(snapshot.systems, width), []]
    shown = sort_jobs(snapshot.jobs)
    lines += job_table(shown[:FRAME_JOBS], None, width) if shown else [_NO_JOBS]
    if (more := len(shown) - FRAME_JOBS) > 0:
        lines.append([Segment(f"and {more} more jobs", DIM)])
    if (detail := snapshot.job) is not None:
        lines += [[], *_JobPanel(detail, snapshot, console).lines(ALL)]
        if detail.log:
            lines += [[], *_log(detail.log, FRAME_LOG_LINES, width)]
    return [in_width(line, width) for line in lines]


def screen(snapshot: SiteSnapshot, console: Console, view: ScreenView) -> list[Line]:
    """Return a snapshot in the width and height of a terminal.

    If there is not enough space, parts are shown in this order of priority: the job and its run,
    its tasks, the systems, other jobs, the run's time by cause, the log. A line lists what is
    omitted.
    """
    width, height = console.size
    room = height - 1
    detail = snapshot.job
    if detail is None:
        lines = [_head(snapshot), *system_table(snapshot.systems, width)]
        lines.append(_NO_JOBS)
    elif view.shows_log:
        jobs = _jobs(snapshot, view, height // 4, width)
        lines = [_head(snapshot, len(jobs) - 1), *jobs]
        lines.append(_title(detail, snapshot, console))
        lines += _log(detail.log, room - len(lines), width) or [[Segment("no log", DIM)]]
    else:
        lines = _fit_to_height(snapshot, detail, console, view, room)
    lines += [[]] * (room - len(lines))
    footer = [cell(view.footer, WARNING if view.asks else DIM)]
    return [in_width(line, width) for line in (*lines[:room], footer)]


def _fit_to_height(
    snapshot: SiteSnapshot, detail: JobDetail, console: Console, view: ScreenView, room: int
) -> list[Line]:
    """Return a job, and as much of its site as fits."""
    width = console.width
    panel = _JobPanel(detail, snapshot, console)
    short = panel.lines(ALL, is_short=True)
    systems = system_table(snapshot.systems, width)
    spare = room - 3 - len(short)  # the head, and the selected job below a heading
    missing = []
    if spare < len(systems):
        systems, missing = [], ["the systems"]
        spare -= 1  # for the line that lists them
        if spare < 0:
            count = max(0, len(detail.tasks) + spare)
            missing.append(f"{len(detail.tasks) - count} of {len(detail.tasks)} tasks")
            short = panel.lines(count, is_short=True)
    spare -= len(systems)
    jobs = _jobs(snapshot, view, max(1, min(1 + spare, console.height // 4)), width)
    spare -= len(jobs) - 2
    full = panel.lines(ALL)
    about = full if len(full) - len(short) <= spare - LEAST_LOG else short
    note = f"not shown: {', '.join(missing)}; csrun top {detail.job_id} --once prints all"
    notes = [[Segment(note, WARNING)]] if missing else []
    head = _head(snapshot, len(jobs) - 1)
    lines = [head, *systems, *jobs, *about][: room - len(notes)]
    rest = room - len(lines) - len(notes)
    if detail.log and rest > LEAST_LOG:
        lines.append(_rule("log", console))
        rest -= 1
    return [*lines, *_log(detail.log, rest, width), *notes]


def sort_jobs(jobs: Iterable[JobLine]) -> list[JobLine]:
    """Sort jobs for display: pending and running ones by number, then ended ones, newest first."""
    active = [job for job in jobs if job.is_active]
    ended = [job for job in jobs if not job.is_active]
    by_number = attrgetter("job_id")
    return [*sorted(active, key=by_number), *sorted(ended, key=by_number, reverse=True)]


def _jobs(snapshot: SiteSnapshot, view: ScreenView, most: int, width: int) -> list[Line]:
    """Return a table of some jobs, including the selected one."""
    jobs = sort_jobs(snapshot.jobs)
    at = next((index for index, job in enumerate(jobs) if job.job_id == view.selected), 0)
    begin = max(0, min(at - most // 2, len(jobs) - most))
    return job_table(jobs[begin : begin + most], view.selected, width)


def _head(snapshot: SiteSnapshot, shown: int | None = None) -> Line:
    """First line; shown: number of jobs on a screen without room for all."""
    running = sum(job.is_active and job.started is not None for job in snapshot.jobs)
    waiting = sum(job.is_active and job.started is None for job in snapshot.jobs)
    clock = f"{snapshot.taken.astimezone():%H:%M:%S}"
    text = f"csrun top  {clock}  site {snapshot.site}: {running} running, {waiting} waiting"
    if shown is not None and shown < len(snapshot.jobs):
        text += f", {shown} of {len(snapshot.jobs)} jobs shown"
    return [cell(text, BOLD)]


def _title(detail: JobDetail, snapshot: SiteSnapshot, console: Console) -> Line:
    job = _line_of(detail, snapshot)
    return _rule(f"job {job.job_id} {job.name[:40]}: {job.state}", console)


def _rule(title: str, console: Console) -> Line:
    dash = "-" if console.options.ascii_only else "─"
    return in_width([cell(title), Segment(f" {dash * console.width}", DIM)], console.width)


def _line_of(detail: JobDetail, snapshot: SiteSnapshot) -> JobLine:
    return next(job for job in snapshot.jobs if job.job_id == detail.job_id)


@dataclass(frozen=True)
class _JobPanel:
    """Title, run and tasks of a job."""

    detail: JobDetail
    snapshot: SiteSnapshot
    console: Console

    def lines(self, most_tasks: int, *, is_short: bool = False) -> list[Line]:
        """Return the run next to its tasks if the screen is wide enough, else above them.

        is_short: with one line for the run's time.
        """
        detail, width = self.detail, self.console.width
        lines = [_title(detail, self.snapshot, self.console)]
        job = _line_of(detail, self.snapshot)
        if job.why:  # which the table of jobs cuts
            why = printable_line(job.why.partition("\n")[0][:MOST_CHARACTERS])
            wrapped = wrap(why, width, max_lines=MOST_WHY_LINES, placeholder="…")
            lines += [[Segment(each, YELLOW)] for each in wrapped]
        if job.started is None:
            lines.append([Segment("not started yet" if job.is_active else "never started", DIM)])
        elif not detail.can_read:
            lines.append([Segment("no files: removed, or of another account", DIM)])
        tasks = task_table(detail.tasks, most_tasks, width)
        if detail.run is None:
            return [*lines, *tasks]
        left = width - width_of(tasks) - TASKS_GAP
        in_columns = bool(tasks) and left >= RUN_COLUMNS
        now = self.snapshot.taken if job.is_active else None
        run = run_lines(
            detail.run,
            now,
            left if in_columns else width,
            self.console.options.ascii_only,
            is_short,
        )
        return [
            *lines,
            *(join_columns(run, tasks, left + TASKS_GAP) if in_columns else (*run, *tasks)),
        ]


def _log(log: Sequence[str], most: int, width: int) -> list[Line]:
    """Return the newest lines of a log."""
    lines = log[-most:] if most > 0 else ()
    return [
        [cell(for_terminal(line[: MOST_CHARACTERS + 1], colour=False), most=width)]
        for line in lines
    ]
