"""Where a run shows how far it is: its launcher, this terminal, or nowhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from csrun.context import Progress, TaskContext

LEAST_INTERVAL_S = 0.2

Show = Callable[[Progress], None]


@contextmanager
def progress_display(context: TaskContext | None) -> Iterator[Show]:
    """A function that shows progress, at most a few times a second."""
    if context is not None:
        link = context.link()
        try:
            yield _seldom(link.progress)
        finally:
            link.close()
    elif sys.stdout.isatty():
        with _terminal() as show:
            yield _seldom(show)
    else:
        yield lambda progress: None


def _seldom(show: Show) -> Show:
    last = 0.0

    def show_seldom(progress: Progress) -> None:
        nonlocal last
        if monotonic() - last >= LEAST_INTERVAL_S or progress.done == progress.total:
            last = monotonic()
            show(progress)

    return show_seldom


@contextmanager
def _terminal() -> Iterator[Show]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, transient=True, redirect_stderr=sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=None, text="")

        def show(progress: Progress) -> None:
            bar.update(
                task,
                description=progress.what,
                completed=progress.done,
                total=progress.total or None,
                text=progress.text,
            )

        yield show
