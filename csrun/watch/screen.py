"""Drawing of a snapshot: the lines of one frame, or of a screen of a given height.

All text of others (names, log lines, reasons) is shown as it is: without markup, with control
characters as escapes, and cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.console import Console
from rich.segment import Segment

from csrun.jobs.overview import SystemStatus
from csrun.jobs.time_limit import format_duration
from csrun.records.log_lines import for_terminal
from csrun.watch.run_panel import run_lines
from csrun.watch.site_snapshot import JobDetail, JobLine, SiteSnapshot, TaskLine
from csrun.watch.text_lines import (
    BOLD,
    DIM,
    GREEN,
    MOST_CHARACTERS,
    PLAIN,
    RED,
    WARNING,
    YELLOW,
    Line,
    beside,
    cell,
    in_width,
    styled,
    table,
    width_of,
)

FRAME_JOBS = 20
FRAME_LOG_LINES = 10
RUN_COLUMNS = 58  # that a run needs, with its tasks to the right
TASKS_GAP = 3
SYSTEM_HEADINGS = ("SYSTEM", "MODE", "POWER", "HELD BY", "WAITING")
JOB_HEADINGS = ("JOB", "NAME", "USER", "STATE", "NODES", "SYSTEM", "TIME", "WHY")
TASK_HEADINGS = ("RANK", "TASK", "NODE", "CPU", "MEMORY", "STATE")
NUMBERS = frozenset({"JOB", "NODES", "TIME", "RANK", "CPU", "MEMORY"})
KEYS = "up/down: job   l: log   c: cancel   q: quit"
_STATE_STYLES = {
    "RUNNING": GREEN,
    "FAILED": RED,
    "TIMEOUT": RED,
    "LOST": RED,
    "PENDING": YELLOW,
    "failed": RED,
    "stopped": YELLOW,
    "ended": DIM,
}


@dataclass(frozen=True)
class Look:
    """Appearance of a screen. selected: the job whose line is marked. shows_log: instead of the
    job's run. footer: last line. asks: the footer is a question.
    """

    selected: int | None = None
    shows_log: bool = False
    footer: str = KEYS
    asks: bool = False


def frame(snapshot: SiteSnapshot, console: Console) -> list[Line]:
    """All of a snapshot, one part below the other; of a long queue the first jobs."""
    width = console.width
    lines = [_head(snapshot), *_systems(snapshot.systems, width), []]
    shown = in_order(snapshot.jobs)
    lines += _jobs(shown[:FRAME_JOBS], Look(), width)
    if (more := len(shown) - FRAME_JOBS) > 0:
        lines.append([Segment(f"and {more} more jobs", DIM)])
    if (detail := snapshot.job) is not None:
        lines += [[], *_job(detail, snapshot, console)]
        if detail.log:
            lines += [[], *_log(detail.log[-FRAME_LOG_LINES:])]
    return [in_width(line, width) for line in lines]


def screen(snapshot: SiteSnapshot, console: Console, look: Look) -> list[Line]:
    """A snapshot in the width and height of a terminal."""
    width, height = console.size
    shown = _around(in_order(snapshot.jobs), look.selected, max(2, height // 4))
    lines = [_head(snapshot), *_systems(snapshot.systems, width), *_jobs(shown, look, width)]
    room = height - 1 - len(lines)
    detail = snapshot.job
    if detail is None:
        lines.append([Segment("no jobs", DIM)])
    elif look.shows_log:
        lines += [_title(detail, snapshot, console), *_log(_newest(detail.log, room - 1))]
    else:
        about = _job(detail, snapshot, console)
        lines += [*about, *_log(_newest(detail.log, room - len(about)))]
    lines += [[]] * (height - 1 - len(lines))
    footer = [cell(look.footer, WARNING if look.asks else DIM)]
    return [in_width(line, width) for line in (*lines[: height - 1], footer)]


def in_order(jobs: Iterable[JobLine]) -> list[JobLine]:
    """Jobs as they are listed: those that wait or run by number, then ended ones, newest first."""
    active = [job for job in jobs if job.is_active]
    ended = [job for job in jobs if not job.is_active]
    by_number = attrgetter("job_id")
    return [*sorted(active, key=by_number), *sorted(ended, key=by_number, reverse=True)]


def _around(jobs: Sequence[JobLine], selected: int | None, room: int) -> Sequence[JobLine]:
    """The part of a long list with the selected job."""
    at = next((index for index, job in enumerate(jobs) if job.job_id == selected), 0)
    begin = max(0, min(at - room // 2, len(jobs) - room))
    return jobs[begin : begin + room]


def _newest(log: Sequence[str], room: int) -> Sequence[str]:
    return log[-room:] if room > 0 else ()


def _head(snapshot: SiteSnapshot) -> Line:
    running = sum(job.is_active and job.started is not None for job in snapshot.jobs)
    waiting = sum(job.is_active and job.started is None for job in snapshot.jobs)
    clock = f"{snapshot.taken.astimezone():%H:%M:%S}"
    text = f"csrun top  {clock}  site {snapshot.site}: {running} running, {waiting} waiting"
    return [cell(text, BOLD)]


def _systems(systems: Iterable[SystemStatus], width: int) -> list[Line]:
    rows = [
        (
            cell(system.name),
            cell(system.mode),
            cell(system.power, YELLOW if system.unavailable else PLAIN),
            cell("" if system.job is None else f"job {system.job}"),
            cell(", ".join(map(str, system.waiting))),
        )
        for system in systems
    ]
    return table(SYSTEM_HEADINGS, rows, width, NUMBERS)


def _jobs(jobs: Iterable[JobLine], look: Look, width: int) -> list[Line]:
    rows = []
    for job in jobs:
        is_selected = job.job_id == look.selected
        row = (
            Segment(f"{'>' if is_selected else ' '}{job.job_id}"),
            cell(job.name, most=24),
            cell(job.user, most=12),
            _state(job.state),
            Segment(str(job.nodes)),
            cell(job.system),
            Segment(format_duration(job.elapsed_s)),
            cell(job.why.partition("\n")[0]),
        )
        rows.append(styled(row, BOLD) if is_selected else row)
    return table(JOB_HEADINGS, rows, width, NUMBERS)


def _state(state: str) -> Segment:
    return cell(state, _STATE_STYLES.get(state, PLAIN))


def _title(detail: JobDetail, snapshot: SiteSnapshot, console: Console) -> Line:
    job = _line_of(detail, snapshot)
    title = cell(f"job {job.job_id} {job.name[:40]}: {job.state}")
    rule = "-" if console.options.ascii_only else "─"
    return in_width([title, Segment(f" {rule * console.width}", DIM)], console.width)


def _line_of(detail: JobDetail, snapshot: SiteSnapshot) -> JobLine:
    return next(job for job in snapshot.jobs if job.job_id == detail.job_id)


def _job(detail: JobDetail, snapshot: SiteSnapshot, console: Console) -> list[Line]:
    """Title, run and tasks of a job."""
    lines = [_title(detail, snapshot, console)]
    job = _line_of(detail, snapshot)
    if job.started is None:
        lines.append([Segment("not started yet" if job.is_active else "never started", DIM)])
    elif not detail.can_read:
        lines.append([Segment("no files: removed, or of another account", DIM)])
    width = console.width
    tasks = _tasks(detail.tasks, max(4, console.height // 3), width)
    if detail.run is None:
        return [*lines, *tasks]
    left = width - width_of(tasks) - TASKS_GAP
    is_beside = bool(tasks) and left >= RUN_COLUMNS
    now = snapshot.taken if job.is_active else None
    ascii_only = console.options.ascii_only
    run = run_lines(detail.run, now, left if is_beside else width, ascii_only)
    return [*lines, *(beside(run, tasks, left + TASKS_GAP) if is_beside else (*run, *tasks))]


def _tasks(tasks: Sequence[TaskLine], room: int, width: int) -> list[Line]:
    """Tasks by rank; of many, those that need a look come first."""
    if not tasks:
        return []
    shown = list(tasks) if len(tasks) <= room else sorted(tasks, key=_needs_no_look)[:room]
    rows = [
        (
            Segment("" if task.rank is None else str(task.rank)),
            cell(task.role if task.rank is not None else task.name),
            cell(task.node),
            Segment("" if task.cpu_percent is None else f"{task.cpu_percent:.0f} %"),
            Segment("" if task.memory_bytes is None else f"{task.memory_bytes / 1e6:,.0f} MB"),
            Segment("straggler", WARNING) if task.is_straggler else _state(task.state),
        )
        for task in shown
    ]
    lines = table(TASK_HEADINGS, rows, width, NUMBERS)
    more = len(tasks) - len(shown)
    return [*lines, [Segment(f"and {more} more tasks", DIM)]] if more else lines


def _needs_no_look(task: TaskLine) -> bool:
    return not task.is_straggler and task.state in ("running", "ended", "unknown")


def _log(lines: Iterable[str]) -> list[Line]:
    return [[cell(for_terminal(line[: MOST_CHARACTERS + 1], colour=False))] for line in lines]
