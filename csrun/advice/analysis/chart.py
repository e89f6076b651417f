"""Throughput against tasks: what the plots in the terminal and on the page draw."""

from dataclasses import dataclass

from csrun.advice.analysis.result import Analysis
from csrun.advice.analysis.wording import count

STEPS = 60
WIDEST = 4  # times the tasks that were measured: further, nothing would be seen of these
HIGHEST = 2.5  # times the curve: a target above would press it flat


@dataclass(frozen=True)
class Dot:
    """So many samples a second of so many tasks."""

    tasks: float
    rate: float


@dataclass(frozen=True)
class Chart:
    """The law's curve, the points it was fitted to, and the target with its margin.

    target: None when it is too high to draw. shown: the recommended tasks of a machine.
    """

    curve: tuple[Dot, ...]
    measured: tuple[Dot, ...]
    target: float | None
    shown: Dot
    most_tasks: int
    highest: float

    @property
    def tasks_told(self) -> tuple[int, ...]:
        """Numbers of tasks for the axis: those that were measured, and its ends."""
        return tuple(sorted({1, *(int(dot.tasks) for dot in self.measured), self.most_tasks}))

    @property
    def rates_told(self) -> tuple[float, ...]:
        """Rates for the axis."""
        return tuple(self.highest * part / 4 for part in range(5))


def chart_of(analysis: Analysis) -> Chart:
    """The chart of the recommended layout's law on one machine, of what other work leaves of it."""
    fit, left = analysis.fit, analysis.left
    shown = analysis.together
    most = min(max(fit.most_tasks, shown, 2), WIDEST * max(fit.most_tasks, 1))
    ends = (1 + (most - 1) * step / STEPS for step in range(STEPS + 1))
    curve = tuple(Dot(tasks, left * fit.at(tasks)) for tasks in ends)
    measured = tuple(Dot(point.tasks, left * point.undisturbed) for point in fit.points)
    highest = max(dot.rate for dot in (*curve, *measured))
    wanted = analysis.target.wanted
    target = wanted if wanted <= HIGHEST * highest else None
    return Chart(
        curve, measured, target, Dot(shown, left * fit.at(shown)), most, max(highest, target or 0.0)
    )


HEIGHT = 16
LEAST_WIDTH, MOST_WIDTH = 40, 100
#: The box-drawing characters of plotext's axes, where there is no Unicode.
PLAIN = str.maketrans("┌┐└┘├┤┬┴┼│─", "+++++++++|-")


def plot(chart: Chart, width: int, unicode: bool) -> str:
    """The curve, the points on it, and the target's line, with a legend below."""
    import plotext  # with a tenth of a second's worth of tables

    line, dot, level = ("braille", "●", "─") if unicode else ("*", "o", "-")
    figure = plotext.figure
    figure.clear()
    figure.plot_size(max(LEAST_WIDTH, min(width, MOST_WIDTH)), HEIGHT)
    figure.theme("colorless")
    if chart.target is not None:
        across = (Dot(chart.curve[0].tasks, chart.target), Dot(chart.most_tasks, chart.target))
        figure.draw(figure.signal(*_axes(across), marker=level).lines())
    figure.draw(figure.signal(*_axes(chart.curve), marker=line).lines())
    figure.draw(figure.signal(*_axes(chart.measured), marker=dot))
    figure.ruler("y").lim(0, 1.05 * chart.highest)
    figure.ruler("y").ticks(list(chart.rates_told), [count(rate) for rate in chart.rates_told])
    figure.ruler("x").ticks(list(chart.tasks_told))
    figure.label("samples/s against tasks of a machine")
    text = str(figure.build().string(colorless=True))
    key = f"  {'⠒' if unicode else line} law   {dot} measured"
    key += f"   {level} target with its margin" if chart.target is not None else ""
    return (text if unicode else text.translate(PLAIN)).rstrip("\n") + f"\n{key}"


def _axes(dots: tuple[Dot, ...]) -> tuple[list[float], list[float]]:
    return [dot.tasks for dot in dots], [dot.rate for dot in dots]
