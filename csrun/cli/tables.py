"""Tables as aligned text, and the table of a job's plan."""

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from csrun.base.safe_text import printable_line

if TYPE_CHECKING:
    from csrun.launch.preview import DryRun, Sharing

BETWEEN = "  "
LEAST_CUT = 6  # minimum width of the shortened column, on any screen
ENOUGH = 50  # width below which other columns are dropped in favour of the shortened one

Row = Sequence[str]


def show(
    headings: Row,
    rows: Iterable[Row],
    cut: str | None = None,
    droppable: Sequence[str] = (),
) -> None:
    """Print rows under their headings.

    On a terminal the last column, `cut`, is shortened to fit. If there is too little space, columns
    of `droppable` are omitted, in order. A pipe gets the full table.
    """
    table: list[Row] = [tuple(headings), *(tuple(map(printable_line, row)) for row in rows)]
    if cut is not None and sys.stdout.isatty():
        table = _fitted(table, droppable, shutil.get_terminal_size().columns)
    table[0] = tuple(heading.upper() for heading in table[0])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        click.echo(BETWEEN.join(cells).rstrip())


def _fitted(table: list[Row], droppable: Sequence[str], columns: int) -> list[Row]:
    """Return the table that fits: with columns dropped as needed, and the last column shortened."""
    wanted = min(ENOUGH, max(len(row[-1]) for row in table))
    for name in droppable:
        if _room(table, columns) >= wanted:
            break
        table = _without(table, {name})
    room = max(LEAST_CUT, _room(table, columns))
    return [(*row[:-1], _shortened(row[-1], room)) for row in table]


def _room(table: list[Row], columns: int) -> int:
    """Return the width that the other columns leave for the last one."""
    *widths, _ = (max(map(len, column)) for column in zip(*table, strict=True))
    return columns - sum(widths) - len(BETWEEN) * len(widths)


def _without(table: list[Row], names: Collection[str]) -> list[Row]:
    kept = [index for index, heading in enumerate(table[0]) if heading not in names]
    return [tuple(row[index] for index in kept) for row in table]


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def show_plan(plan: "DryRun") -> None:
    """Print a job's tasks as a table, then the srun command and the shared resources."""
    rows = ((str(t.rank), t.role, t.node, ranges(t.cpus)) for t in plan.tasks)
    show(("rank", "role", "node", "cpus"), rows)
    click.echo("Nodes: for an idle site; a job gets the first free ones")
    click.echo(f"On a cluster: {plan.srun}")
    for line in _sharing(len(plan.tasks), plan.sharing) if plan.sharing else ():
        click.echo(line)


def ranges(numbers: Iterable[int]) -> str:
    """Format sorted numbers as ranges: 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _sharing(tasks: int, sharing: "Sharing") -> list[str]:
    lines = [
        f"CPUs: {tasks} tasks request {sharing.nominal_cpus} CPUs and share "
        f"{sharing.real_cpus} physical ones, at most {sharing.tasks_per_cpu} tasks on each"
    ]
    if sharing.memory_mb is not None:
        lines.append(
            f"Memory: about {sharing.memory_mb:,} MiB before the model and its data, of "
            f"{sharing.memory_available_mb:,} MiB available"
        )
    return lines
