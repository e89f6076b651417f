"""Tables of a snapshot: systems, jobs and tasks.

Foreign text (names, reasons) is shown without markup, with control characters escaped, and
shortened.
"""

from collections.abc import Iterable, Sequence

from rich.segment import Segment
from rich.style import Style

from csrun.jobs.overview import SystemStatus
from csrun.jobs.time_limit import format_duration
from csrun.watch.site_snapshot import JobLine, TaskLine
from csrun.watch.text_lines import (
    BOLD,
    DIM,
    GREEN,
    PLAIN,
    RED,
    WARNING,
    YELLOW,
    Line,
    cell,
    styled,
    table,
)

SYSTEM_HEADINGS = ("SYSTEM", "MODE", "POWER", "HELD BY", "WAITING")
JOB_HEADINGS = ("JOB", "NAME", "USER", "STATE", "NODES", "SYSTEM", "TIME", "WHY")
TASK_HEADINGS = ("RANK", "TASK", "NODE", "CPU", "MEMORY", "STATE")
NUMBERS = frozenset({"JOB", "NODES", "TIME", "RANK", "CPU", "MEMORY"})
# columns omitted first on a narrow screen
LESS_WANTED = ("NODES", "USER", "POWER", "WAITING", "NODE")
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


def system_table(systems: Iterable[SystemStatus], width: int) -> list[Line]:
    """Lines of the systems."""
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
    return table(SYSTEM_HEADINGS, rows, width, NUMBERS, LESS_WANTED)


def job_table(jobs: Iterable[JobLine], selected: int | None, width: int) -> list[Line]:
    """Return the lines of jobs; the selected one is marked."""
    rows = []
    for job in jobs:
        is_selected = job.job_id == selected
        row = (
            Segment(f"{'>' if is_selected else ' '}{job.job_id}"),
            cell(job.name, most=24),
            cell(job.user, most=12),
            cell(job.state, _style_of(job.state)),
            Segment(str(job.nodes)),
            cell(job.system),
            Segment(format_duration(job.elapsed_s)),
            cell(job.why.partition("\n")[0]),
        )
        rows.append(styled(row, BOLD) if is_selected else row)
    return table(JOB_HEADINGS, rows, width, NUMBERS, LESS_WANTED)


def task_table(tasks: Sequence[TaskLine], most: int, width: int) -> list[Line]:
    """Return the lines of a limited number of tasks, by rank; of more, those with problems come
    first.
    """
    shown = tasks if len(tasks) <= most else sorted(tasks, key=_is_healthy)[: max(0, most)]
    rows = [
        (
            Segment("" if task.rank is None else str(task.rank)),
            cell(task.role if task.rank is not None else task.name),
            cell(task.node),
            Segment("" if task.cpu_percent is None else f"{task.cpu_percent:.0f}%"),
            Segment("" if task.memory_bytes is None else f"{task.memory_bytes / 1e6:,.0f} MB"),
            Segment("straggler", WARNING)
            if task.is_straggler
            else cell(task.state, _style_of(task.state)),
        )
        for task in shown
    ]
    return table(TASK_HEADINGS, rows, width, NUMBERS, LESS_WANTED) if rows else []


def _is_healthy(task: TaskLine) -> bool:
    return not task.is_straggler and task.state in ("running", "ended", "unknown")


def _style_of(state: str) -> Style:
    return _STATE_STYLES.get(state, PLAIN)
