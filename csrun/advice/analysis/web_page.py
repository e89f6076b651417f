"""Report as one self-contained page."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from csrun.advice import numbers
from csrun.advice.analysis import wording
from csrun.advice.analysis.chart import Chart, ChartPoint, chart_of
from csrun.advice.analysis.result import Analysis
from csrun.base.files import write_atomic
from csrun.base.html_pages import page

HTML_FILE = "input_analysis.html"
PAGE = Path(__file__).with_name("page")


@dataclass(frozen=True)
class Frame:
    """Frame of the chart. Units: of the picture, y downwards"""

    chart: Chart
    width: int = 720
    height: int = 340
    left: int = 76
    right: int = 16
    top: int = 16
    bottom: int = 44
    room: float = 1.06  # margin above the highest rate

    @property
    def floor(self) -> int:
        """y of rate 0."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """x of the most tasks."""
        return self.width - self.right

    def x(self, tasks: float) -> float:
        """Return the x of a number of tasks; one task is slightly off the axis."""
        share = (tasks - 0.5) / (self.chart.most_tasks - 0.5)
        return round(self.left + share * (self.end - self.left), 2)

    def y(self, rate: float) -> float:
        """Return the y of a rate."""
        share = rate / (self.room * self.chart.highest)
        return round(self.floor - share * (self.floor - self.top), 2)

    def path(self, dots: tuple[ChartPoint, ...]) -> str:
        return " ".join(f"{self.x(dot.tasks)},{self.y(dot.rate)}" for dot in dots)


def render(analysis: Analysis) -> str:
    names = ("count", "deviation", "with_spread")
    filters = {name: getattr(numbers, name) for name in names}
    chart = chart_of(analysis)
    return page(
        PAGE,
        {**filters, "shell": shlex.join},
        analysis=analysis,
        say=wording,
        chart=chart,
        frame=Frame(chart),
    )


def write(analysis: Analysis, folder: Path) -> Path:
    """Write the page to a folder, and return its path."""
    path = folder / HTML_FILE
    write_atomic(path, render(analysis).encode(), durable=False)
    return path
