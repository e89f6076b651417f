"""Progress bars on a terminal: a launcher's, and those of a run without one."""

import sys

from rich import get_console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from csrun.context.launcher_link import Progress

# narrower than rich's default: a loss and a wait fit next to it in 100 columns, and almost in 80
BAR_WIDTH, LEAST_BAR_WIDTH = 20, 4
OTHER_COLUMNS = 88


class RateColumn(ProgressColumn):
    """Column with units per second, for operations that name their unit."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        unit, speed = task.fields["unit"], task.finished_speed or task.speed
        if not unit or speed is None:
            return Text("")
        return Text(f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.3g} {unit}/s")


class DetailColumn(ProgressColumn):
    """Column with a task's text, the only one that is shortened on a narrow terminal."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["text"], no_wrap=True, overflow="ellipsis")


class ProgressBars:
    """Progress bars, one for each unfinished operation; printed lines stay above them."""

    def __init__(self) -> None:
        bar_width = min(BAR_WIDTH, max(LEAST_BAR_WIDTH, get_console().width - OTHER_COLUMNS))
        self._progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            RateColumn(),
            DetailColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            transient=True,
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def write(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.out(text, end="", highlight=False)

    def update(self, progress: Progress) -> None:
        """Update the progress of an operation; its total may be unknown at first."""
        self._progress.start()
        total = progress.total or None
        if progress.what not in self._tasks:
            self._tasks[progress.what] = self._progress.add_task(
                progress.what, total=total, text="", unit=progress.unit
            )
        self._progress.update(
            self._tasks[progress.what], completed=progress.done, total=total, text=progress.text
        )
        if progress.done == total:
            self._progress.remove_task(self._tasks.pop(progress.what))

    def close(self) -> None:
        self._progress.stop()
