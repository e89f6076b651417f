"""Drawing of a snapshot with rich: one frame, or a screen of a given height.

All text of others (names, log lines, reasons) is shown as it is: as Text, without markup, with
control characters as escapes, and cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from csrun.base.safe_text import printable_line
from csrun.jobs.overview import SystemStatus
from csrun.jobs.time_limit import format_duration
from csrun.records.log_lines import for_terminal
from csrun.watch.run_panel import run_table
from csrun.watch.site_snapshot import JobDetail, JobLine, SiteSnapshot, TaskLine

MOST_CHARACTERS = 300  # of a text of others: rich measures all of it, however narrow its cell
FRAME_JOBS = 20
FRAME_LOG_LINES = 10
RUN_COLUMNS = 58  # that a run needs, with its tasks to the right
TASK_HEADINGS = ("RANK", "TASK", "NODE", "CPU", "MEMORY", "STATE")
KEYS = "up/down: job   l: log   c: cancel   q: quit"
_STATE_STYLES = {
    "RUNNING": "green",
    "FAILED": "red",
    "TIMEOUT": "red",
    "LOST": "red",
    "PENDING": "yellow",
    "failed": "red",
    "stopped": "yellow",
    "ended": "dim",
}


@dataclass(frozen=True)
class Look:
    """Appearance of a screen. selected: the job whose line is marked. shows_log: instead of the
    job's run. footer: last line; bold: a question.
    """

    selected: int | None = None
    shows_log: bool = False
    footer: str = KEYS
    asks: bool = False


def safe(text: str, style: str = "") -> Text:
    """A text of unknown origin for one cell."""
    shown = printable_line(text[: MOST_CHARACTERS + 1])
    if len(shown) > MOST_CHARACTERS:
        shown = f"{shown[:MOST_CHARACTERS]}…"
    return Text(shown, style, no_wrap=True, overflow="ellipsis")


def frame(snapshot: SiteSnapshot, console: Console) -> RenderableType:
    """All of a snapshot, one part below the other; of a long queue the first jobs."""
    parts: list[RenderableType] = [_head(snapshot), _systems(snapshot.systems)]
    shown = in_order(snapshot.jobs)
    parts += [Text(), _jobs(shown[:FRAME_JOBS], Look())]
    if more := len(shown) - FRAME_JOBS:
        parts += [Text(f"and {more} more jobs", "dim")] if more > 0 else []
    if (detail := snapshot.job) is not None:
        parts += [Text(), *_job_parts(detail, snapshot, console).parts]
        if detail.log:
            parts += [Text(), *_log(detail.log[-FRAME_LOG_LINES:])]
    return Group(*parts)


def screen(snapshot: SiteSnapshot, console: Console, look: Look) -> Layout:
    """A snapshot in the height of a terminal."""
    shown = in_order(snapshot.jobs)
    lines = _around(shown, look.selected, _room(console))
    layout = Layout()
    layout.split_column(
        Layout(_head(snapshot), size=1),
        Layout(_systems(snapshot.systems), size=len(snapshot.systems) + 1),
        Layout(_jobs(lines, look), size=len(lines) + 1),
        Layout(_lower(snapshot, console, look), name="job"),
        Layout(Text(look.footer, "bold yellow" if look.asks else "dim"), size=1),
    )
    return layout


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


def _lower(snapshot: SiteSnapshot, console: Console, look: Look) -> RenderableType:
    detail = snapshot.job
    if detail is None:
        return Text("no jobs", "dim")
    if look.shows_log:
        return Group(_title(detail, snapshot), *_log(detail.log[-console.height :]))
    parts = _job_parts(detail, snapshot, console)
    above = 1 + len(snapshot.systems) + 1 + min(len(snapshot.jobs), _room(console)) + 1
    room = max(1, console.height - above - parts.lines - 1)
    return Group(*parts.parts, *_log(detail.log[-room:]))


def _room(console: Console) -> int:
    """Jobs that a screen lists."""
    return max(2, console.height // 4)


def _head(snapshot: SiteSnapshot) -> Text:
    running = sum(job.is_active and job.started is not None for job in snapshot.jobs)
    waiting = sum(job.is_active and job.started is None for job in snapshot.jobs)
    clock = f"{snapshot.taken.astimezone():%H:%M:%S}"
    text = f"csrun top  {clock}  site {snapshot.site}: {running} running, {waiting} waiting"
    return safe(text, "bold")


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        right = heading in ("JOB", "NODES", "TIME", "RANK", "CPU", "MEMORY")
        # Where the screen is too narrow, rich shortens the columns first that it might wrap.
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=heading not in ("WHY", "WAITING"),
            overflow="ellipsis",
            min_width=4,
        )
    return table


def _systems(systems: Iterable[SystemStatus]) -> Table:
    table = _table("SYSTEM", "MODE", "POWER", "HELD BY", "WAITING")
    for system in systems:
        holder = "" if system.job is None else f"job {system.job}"
        style = "yellow" if system.unavailable else ""
        waiting = ", ".join(map(str, system.waiting))
        table.add_row(
            safe(system.name), safe(system.mode), safe(system.power, style), holder, safe(waiting)
        )
    return table


def _jobs(jobs: Iterable[JobLine], look: Look) -> Table:
    table = _table("JOB", "NAME", "USER", "STATE", "NODES", "SYSTEM", "TIME", "WHY")
    for job in jobs:
        is_selected = job.job_id == look.selected
        table.add_row(
            f"{'>' if is_selected else ' '}{job.job_id}",
            safe(job.name[:24]),
            safe(job.user[:12]),
            _state(job.state),
            str(job.nodes),
            safe(job.system),
            format_duration(job.elapsed_s),
            safe(job.why.partition("\n")[0]),
            style="bold" if is_selected else "",
        )
    return table


def _state(state: str) -> Text:
    return safe(state, _STATE_STYLES.get(state, ""))


def _title(detail: JobDetail, snapshot: SiteSnapshot) -> RenderableType:
    job = next(job for job in snapshot.jobs if job.job_id == detail.job_id)
    return Rule(safe(f"job {job.job_id} {job.name[:40]}: {job.state}"), align="left", style="dim")


@dataclass(frozen=True)
class _JobParts:
    """Drawing of a job, and the number of its lines: to render it only to count them takes long."""

    parts: list[RenderableType]
    lines: int


def _job_parts(detail: JobDetail, snapshot: SiteSnapshot, console: Console) -> _JobParts:
    """Title, run and tasks of a job."""
    parts: list[RenderableType] = [_title(detail, snapshot)]
    job = next(job for job in snapshot.jobs if job.job_id == detail.job_id)
    if job.started is None:
        parts.append(Text("not started yet" if job.is_active else "never started", "dim"))
    elif not detail.can_read:
        parts.append(Text("no files: removed, or of another account", "dim"))
    rows = _task_rows(detail.tasks, max(4, console.height // 3))
    columns = zip(*[TASK_HEADINGS, *rows], strict=True)
    tasks_width = sum(max(map(cell_len, map(str, column))) + 2 for column in columns)
    left = console.width - tasks_width - 3 if rows else 0
    run = None
    if detail.run is not None:
        now = snapshot.taken if job.is_active else None
        width = left if left >= RUN_COLUMNS else console.width
        run = run_table(detail.run, now, width, console.options.ascii_only)
    more = len(detail.tasks) - len(rows)
    tasks = _tasks(rows, more) if rows else None
    heights = 0 if run is None else run.row_count, len(rows) + bool(rows) + bool(more)
    if run is not None and tasks is not None and left >= RUN_COLUMNS:
        both = Table.grid(padding=(0, 3, 0, 0))
        both.add_column(width=left)
        both.add_column()
        both.add_row(run, tasks)
        return _JobParts([*parts, both], len(parts) + max(heights))
    below = [part for part in (run, tasks) if part is not None]
    return _JobParts([*parts, *below], len(parts) + sum(heights))


def _task_rows(tasks: Sequence[TaskLine], room: int) -> list[tuple[Text, ...]]:
    """Tasks by rank; of many, those that need a look come first."""
    shown = list(tasks) if len(tasks) <= room else sorted(tasks, key=_needs_no_look)[:room]
    return [
        (
            Text("" if task.rank is None else str(task.rank)),
            safe(task.role if task.rank is not None else task.name),
            safe(task.node),
            Text("" if task.cpu_percent is None else f"{task.cpu_percent:.0f} %"),
            Text("" if task.memory_bytes is None else f"{task.memory_bytes / 1e6:,.0f} MB"),
            _task_state(task),
        )
        for task in shown
    ]


def _tasks(rows: Iterable[tuple[Text, ...]], more: int) -> RenderableType:
    table = _table(*TASK_HEADINGS)
    for row in rows:
        table.add_row(*row)
    return Group(table, Text(f"and {more} more tasks", "dim")) if more else table


def _needs_no_look(task: TaskLine) -> bool:
    return not task.is_straggler and task.state in ("running", "ended", "unknown")


def _task_state(task: TaskLine) -> Text:
    return Text("straggler", "bold yellow") if task.is_straggler else _state(task.state)


def _log(lines: Iterable[str]) -> list[RenderableType]:
    return [safe(for_terminal(line[: MOST_CHARACTERS + 1], colour=False)) for line in lines]
