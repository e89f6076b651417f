"""Rows of text: a table on a terminal that has room for it, else aligned columns; a job's plan."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from csrun.launch.preview import DryRun, Sharing

# Of a cut text this much is left, however narrow the screen.
LEAST_CUT = 6
LEAST_CUT_IN_TABLE = 20  # with less, the room of a table's lines is worth more to the text


def show(headings: Sequence[str], rows: Iterable[Sequence[str]], cut: str | None = None) -> None:
    """Print rows under their headings; the last one, `cut`, is shortened to fit a screen."""
    rows = list(rows)
    if not sys.stdout.isatty():
        _show_columns([[heading.upper() for heading in headings], *rows])
        return
    borders = 3 * len(headings) + 1  # a line and two spaces a column
    spaces = 2 * (len(headings) - 1)
    table = columns = rows
    if cut is not None:
        table = _cut(headings, rows, borders, LEAST_CUT_IN_TABLE)
        columns = _cut(headings, rows, spaces, LEAST_CUT)
    if not _show_table(headings, table):
        _show_columns([[heading.upper() for heading in headings], *columns])


def _cut(
    headings: Sequence[str], rows: list[Sequence[str]], between: int, least: int
) -> list[Sequence[str]]:
    """The rows with the last text as short as the others, and what is between, leave room for."""
    *widths, _ = (max(map(len, column)) for column in zip(headings, *rows, strict=True))
    room = max(least, shutil.get_terminal_size().columns - sum(widths) - between)
    return [(*row[:-1], _shortened(row[-1], room)) for row in rows]


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Print a table; False when the terminal is too narrow to show all of it."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    unbounded = console.options.update(max_width=sys.maxsize)
    fits = Measurement.get(console, unbounded, table).maximum <= console.width
    if fits:
        console.print(table)
    return fits


def _show_columns(rows: list[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def show_plan(plan: "DryRun") -> None:
    """Print a job's tasks as a table, then the srun line and what the machine shares."""
    from rich.console import Console
    from rich.table import Table

    table = Table("rank", "role", "node", "cpus")
    table.columns[0].justify = "right"
    for task in plan.tasks:
        table.add_row(str(task.rank), task.role, task.node, ranges(task.cpus))
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print("Nodes: as on an idle site; a job gets the first ones that are free")
    console.print(f"On a cluster: {plan.srun}", soft_wrap=True)
    for line in _sharing(len(plan.tasks), plan.sharing) if plan.sharing else ():
        console.print(line, soft_wrap=True)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers in short: 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _sharing(tasks: int, sharing: "Sharing") -> list[str]:
    lines = [
        f"CPUs: {tasks} tasks ask for {sharing.nominal_cpus} and share {sharing.real_cpus} real "
        f"ones, at most {sharing.tasks_per_cpu} tasks on one"
    ]
    if sharing.memory_mb is not None:
        lines.append(
            f"Memory: about {sharing.memory_mb:,} MiB before the model and its data, of "
            f"{sharing.memory_available_mb:,} MiB available"
        )
    return lines
