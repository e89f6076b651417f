"""Chart of throughput over tasks, for the plots in the terminal and on the page."""

from dataclasses import dataclass

from csrun.advice.analysis.result import Analysis
from csrun.advice.numbers import round_ticks

STEPS = 60
TICKS = 6
WIDEST = 4  # times the measured tasks: a longer axis would hide these
HIGHEST = 2.5  # times the curve: a target above would flatten it


@dataclass(frozen=True)
class ChartPoint:
    """Throughput of a number of tasks."""

    tasks: float
    rate: float


@dataclass(frozen=True)
class Chart:
    """Curve of the law, the points it was fitted to, and the target with its margin.

    measured: indices into the table of points. target: None if too high to draw.
    recommended: the tasks per machine, and their rate.
    """

    curve: tuple[ChartPoint, ...]
    measured: tuple[ChartPoint, ...]
    target: float | None
    recommended: ChartPoint
    most_tasks: int
    highest: float

    @property
    def tasks_ticks(self) -> tuple[int, ...]:
        """Return tick marks of the task axis: 1, and round numbers."""
        ticks = round_ticks(self.most_tasks, TICKS)
        return tuple(sorted({1, *(int(tick) for tick in ticks if tick >= 1)}))

    @property
    def rate_ticks(self) -> tuple[float, ...]:
        return round_ticks(self.highest, TICKS)


def chart_of(analysis: Analysis) -> Chart:
    """Return the chart of the recommended layout's law on one machine.

    If the job runs on this machine, next to other work, points are as measured and the law is
    reduced accordingly; elsewhere both are undisturbed.
    """
    fit, left = analysis.fit, analysis.left
    tasks = analysis.concurrent_streamers
    most = min(max(fit.most_tasks, tasks, 2), WIDEST * max(fit.most_tasks, 1))
    numbers = (1 + (most - 1) * step / STEPS for step in range(STEPS + 1))
    curve = tuple(ChartPoint(number, left * fit.at(number)) for number in numbers)
    here = analysis.site.one_machine
    measured = tuple(
        ChartPoint(point.tasks, point.measured if here else point.undisturbed)
        for point in fit.points
    )
    highest = max(dot.rate for dot in (*curve, *measured))
    wanted = analysis.target.wanted
    target = wanted if wanted <= HIGHEST * highest else None
    layout = analysis.solution.layout
    rate = layout.samples_per_s if tasks == layout.streamers else left * fit.at(tasks)
    return Chart(
        curve, measured, target, ChartPoint(tasks, rate), most, max(highest, target or 0.0)
    )
