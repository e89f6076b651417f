"""Report in a terminal."""

import shlex
from collections.abc import Iterable, Sequence
from textwrap import fill

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table

from csrun.advice.analysis import wording
from csrun.advice.analysis.chart import Chart, ChartPoint, chart_of
from csrun.advice.analysis.laws import FittedPoint
from csrun.advice.analysis.result import Analysis
from csrun.advice.analysis.scaling import StreamerLayout
from csrun.advice.numbers import count, deviation, with_spread

TITLE = "Input pipeline analysis"
NAME_WIDTH = 15
TABLE_WIDTH = 72  # table of numbers
INDENT = "  "
HEIGHT = 16
LEAST_WIDTH, MOST_WIDTH = 40, 100
#: Replacements of plotext's box-drawing characters without Unicode.
PLAIN = str.maketrans("┌┐└┘├┤┬┴┼│─", "+++++++++|-")
POINT_COLUMNS = ("tasks", "CPUs per task", "samples/s", "undisturbed", "by the law", "error")
LAYOUT_COLUMNS = ("nodes", "tasks_per_node", "cpus_per_task", "streamers", "samples/s")


def show(analysis: Analysis, console: Console) -> None:
    for part in (_head, _stages, _measured, _recommended):
        part(analysis, console)


def show_verified(analysis: Analysis, console: Console) -> None:
    """Print the result of a run of the layout."""
    if analysis.verified is not None:
        _section(wording.verdict(analysis), [wording.verified(analysis.verified)], console)


def _head(analysis: Analysis, console: Console) -> None:
    named = (
        f"{name + ':':<{NAME_WIDTH}}{text}" for name, text in wording.heading(analysis).items()
    )
    _section(TITLE, [shlex.join(analysis.command), *named], console)


def _stages(analysis: Analysis, console: Console) -> None:
    if analysis.limiting is None:
        return
    rows = (
        (
            each.name,
            with_spread(each.wall_us, each.spread_us),
            f"{100 * each.computing:.0f}%",
            f"{100 * each.share:.0f}%",
        )
        for each in analysis.stages
    )
    _section("Stages of a worker", [], console)
    _table(("stage", "us per sample", "of it CPU", "share"), rows, console)
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


def _rates(at: FittedPoint) -> tuple[float, ...]:
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


def _cells(layout: StreamerLayout) -> tuple[str, ...]:
    numbers = (layout.nodes, layout.tasks_per_node, layout.cpus_per_task, layout.streamers)
    return (*map(str, numbers), count(layout.samples_per_s))


def _section(title: str, lines: Iterable[str], console: Console) -> None:
    console.print(f"\n{title}", style="bold")
    for line in lines:
        wrapped = fill(line, console.width, initial_indent=INDENT, subsequent_indent=INDENT)
        console.print(wrapped, soft_wrap=True)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """Print a table with a column of names and columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "stage" else "right")
    for row in rows:
        table.add_row(*row)
    # in a narrower terminal lines wrap, so that numbers are not cut
    wide = console.options.update(width=max(console.width, TABLE_WIDTH))
    indented = Padding(table, (0, 0, 0, len(INDENT)), expand=False)
    for line in console.render_lines(indented, wide, pad=False):
        console.print(Segments([*line, Segment.line()]), soft_wrap=True)


def plot(chart: Chart, width: int, unicode: bool) -> str:
    """Plot the curve, the points and the target's line, with a legend below."""
    import plotext  # with a tenth of a second's worth of tables

    line, dot, level = ("braille", "●", "─") if unicode else ("*", "o", "-")
    figure = plotext.figure
    figure.clear()
    figure.plot_size(max(LEAST_WIDTH, min(width, MOST_WIDTH)), HEIGHT)
    figure.theme("colorless")
    if chart.target is not None:
        across = (
            ChartPoint(chart.curve[0].tasks, chart.target),
            ChartPoint(chart.most_tasks, chart.target),
        )
        figure.draw(figure.signal(*_axes(across), marker=level).lines())
    figure.draw(figure.signal(*_axes(chart.curve), marker=line).lines())
    figure.draw(figure.signal(*_axes(chart.measured), marker=dot))
    figure.ruler("y").lim(0, 1.05 * chart.highest)
    figure.ruler("y").ticks(list(chart.rate_ticks), [count(rate) for rate in chart.rate_ticks])
    figure.ruler("x").ticks(list(chart.tasks_ticks))
    figure.label("samples/s by number of tasks per machine")
    text = str(figure.build().string(colorless=True))
    key = f"  {'⠒' if unicode else line} law   {dot} measured"
    key += f"   {level} target with its margin" if chart.target is not None else ""
    return (text if unicode else text.translate(PLAIN)).rstrip("\n") + f"\n{key}"


def _axes(dots: tuple[ChartPoint, ...]) -> tuple[list[float], list[float]]:
    return [dot.tasks for dot in dots], [dot.rate for dot in dots]
