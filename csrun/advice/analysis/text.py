"""The report in a terminal."""

import shlex
from collections.abc import Iterable, Sequence
from textwrap import fill

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from csrun.advice.analysis import wording
from csrun.advice.analysis.chart import chart_of, plot
from csrun.advice.analysis.laws import Fitted
from csrun.advice.analysis.result import Analysis
from csrun.advice.analysis.scaling import Layout
from csrun.advice.analysis.wording import count, deviation, microseconds, percent

TITLE = "Input pipeline analysis"
NAME_WIDTH = 15
INDENT = "  "
POINT_COLUMNS = ("tasks", "cpus_per_task", "samples/s", "undisturbed", "by the law", "off")
LAYOUT_COLUMNS = ("nodes", "tasks_per_node", "cpus_per_task", "streamers", "samples/s")


def show(analysis: Analysis, console: Console) -> None:
    """Print the whole report."""
    for part in (_head, _stages, _measured, _recommended):
        part(analysis, console)


def show_verified(analysis: Analysis, console: Console) -> None:
    """Print what a run of the layout delivered."""
    if analysis.verified is not None:
        _section("Verified", [wording.verified(analysis.verified)], console)


def _head(analysis: Analysis, console: Console) -> None:
    named = (
        f"{name + ':':<{NAME_WIDTH}}{text}" for name, text in wording.heading(analysis).items()
    )
    _section(TITLE, [shlex.join(analysis.command), *named], console)


def _stages(analysis: Analysis, console: Console) -> None:
    if analysis.limiting is None:
        return
    rows = (
        (each.name, microseconds(each.wall_us), microseconds(each.cpu_us), percent(each.share))
        for each in analysis.stages
    )
    _section("Stages of a worker", [], console)
    _table(("stage", "us a sample", "of it CPU", "share"), rows, console)
    _section("Limiting stage", [wording.limiting(analysis.limiting)], console)
    if suggestions := analysis.measurements.suggestions:
        _section("Suggestions", suggestions, console)


def _measured(analysis: Analysis, console: Console) -> None:
    rows = (
        (str(at.tasks), str(fit.cpus), *map(count, _rates(at)), deviation(at.deviation))
        for fit in analysis.fits
        for at in fit.points
    )
    _section("Measured", [], console)
    _table(POINT_COLUMNS, rows, console)
    _section("Law", wording.laws(analysis), console)
    unicode = (console.encoding or "").lower().startswith("utf") and console.is_terminal
    console.print()
    console.print(plot(chart_of(analysis), console.width - 2, unicode), soft_wrap=True)


def _rates(at: Fitted) -> tuple[float, ...]:
    return at.measured, at.undisturbed, at.fitted


def _recommended(analysis: Analysis, console: Console) -> None:
    layout = analysis.solution.layout
    numbers = [
        f"nodes: {layout.nodes}",
        f"tasks_per_node: {layout.tasks_per_node}",
        f"cpus_per_task: {layout.cpus_per_task}",
    ]
    _section("Recommended", [*numbers, *wording.outcome(analysis)], console)
    _section("Estimated input performance", [], console)
    _table(LAYOUT_COLUMNS, map(_cells, analysis.solution.by_nodes), console)
    _section("To run it", [], console)
    console.print(INDENT + shlex.join(analysis.launch), soft_wrap=True)


def _cells(layout: Layout) -> tuple[str, ...]:
    numbers = (layout.nodes, layout.tasks_per_node, layout.cpus_per_task, layout.streamers)
    return (*map(str, numbers), count(layout.samples_per_s))


def _section(title: str, lines: Iterable[str], console: Console) -> None:
    console.print(f"\n{title}", style="bold")
    for line in lines:
        wrapped = fill(line, console.width, initial_indent=INDENT, subsequent_indent=INDENT)
        console.print(wrapped, soft_wrap=True)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """A table whose first column is wide enough for names, and the others for numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "stage" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, len(INDENT)), expand=False))
