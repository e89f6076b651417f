"""Tables as aligned text, and the table of a job's plan."""

import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from csrun.base.safe_text import printable_line

if TYPE_CHECKING:
    from csrun.launch.preview import DryRun, Sharing

BETWEEN = "  "
LEAST_CUT = 6  # minimum width of the shortened column, on any screen
READABLE = 16  # width at which most names can be distinguished; other columns keep it
ENOUGH = 50  # width below which other columns are dropped in favour of the shortened one

Row = Sequence[str]
# as `csrun.launch.first_cause.who` names a task; "rank 0 (chief) on node1: ..."
_FAILED_TASK = re.compile(r"^rank (\d+) \((\w+)\) on \S+?(:?)(?= )")


def short_reason(why: str) -> str:
    """Shorten the failed task in a reason to role and rank, on a terminal: `streamer 3: ...`."""
    return _FAILED_TASK.sub(r"\2 \1\3", why) if sys.stdout.isatty() else why


def show(
    headings: Row,
    rows: Iterable[Row],
    cut: str | None = None,
    droppable: Sequence[str] = (),
    *,
    is_wrapped: bool = False,
) -> None:
    """Print rows under their headings.

    On a terminal the last column, `cut`, and columns that are wider than READABLE are shortened to
    fit, the widest first. If there is too little space, columns of `droppable` are omitted, in
    order. With `is_wrapped` the last column is wrapped instead. A pipe gets the full table.
    """
    table: list[Row] = [tuple(headings), *(tuple(map(printable_line, row)) for row in rows)]
    columns = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and is_wrapped:
        table = _wrapped(table, columns)
    elif sys.stdout.isatty() and cut is not None:
        table = _fitted(table, droppable, columns)
    table[0] = tuple(heading.upper() for heading in table[0])
    widths = _widths(table)
    for row in table:
        cells = (text + " " * (w - _width(text)) for text, w in zip(row, widths, strict=True))
        click.echo(BETWEEN.join(cells).rstrip())


def _widths(table: Sequence[Row]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*table, strict=True)]


def _width(text: str) -> int:
    """Return the number of a terminal's cells; a Chinese character has two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fitted(table: list[Row], droppable: Sequence[str], columns: int) -> list[Row]:
    """Return the table that fits: with columns dropped as needed, and wide ones shortened."""
    wanted = min(ENOUGH, max(_width(row[-1]) for row in table))
    for name in droppable:
        *others, _ = _widths(table)
        if sum(min(each, READABLE) + len(BETWEEN) for each in others) + wanted <= columns:
            break
        table = _without(table, {name})
    widths = _widths(table)
    room = columns - len(BETWEEN) * (len(widths) - 1)
    readable = [min(each, READABLE) for each in widths[:-1]]
    for least_cut in (wanted, LEAST_CUT):  # the last column is shortened after the others
        widths = _reduced(widths, [*readable, least_cut], room)
    return [tuple(map(_shortened, row, widths)) for row in table]


def _reduced(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths with a sum of at most `room` if the least ones allow it, the widest reduced."""
    found = list(widths)
    while sum(found) > room and (larger := [n for n, w in enumerate(found) if w > least[n]]):
        found[max(larger, key=found.__getitem__)] -= 1
    return found


def _wrapped(table: list[Row], columns: int) -> list[Row]:
    """Return the table with the last column in as many lines as it needs."""
    *others, _ = _widths(table)
    room = max(READABLE, columns - sum(others) - len(BETWEEN) * len(others))
    found: list[Row] = []
    for row in table:
        lines = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        found += [(*row[:-1], lines[0]), *((*("" for _ in others), line) for line in lines[1:])]
    return found


def _without(table: list[Row], names: Collection[str]) -> list[Row]:
    kept = [index for index, heading in enumerate(table[0]) if heading not in names]
    return [tuple(row[index] for index in kept) for row in table]


def _shortened(text: str, room: int) -> str:
    if _width(text) <= room:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, room - 1)}…"


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
