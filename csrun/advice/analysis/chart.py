"""Throughput against tasks: what the plots in the terminal and on the page draw."""

from dataclasses import dataclass

from csrun.advice.analysis.result import Analysis

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
