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
    elif sys.stdout is not None and sys.stdout.isatty():
        from csrun.context.bars import Bars

        bars = Bars()
        try:
            yield _seldom(bars.update)
        finally:
            bars.close()
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
