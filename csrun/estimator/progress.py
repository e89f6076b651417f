"""Where a run shows how far it is: its launcher, this terminal, or nowhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from time import monotonic

from csrun.compiler import STAGES, Begin
from csrun.context import Progress, TaskContext

LEAST_INTERVAL_S = 0.2
APPEARS_AFTER_S = 0.4  # a compile that is done sooner would only flicker

Show = Callable[[Progress], None]


@contextmanager
def progress_display(context: TaskContext | None) -> Iterator[Show]:
    """A function that shows progress, at most a few times a second."""
    with _display(context) as show:
        yield _seldom(show)


@contextmanager
def compile_display(context: TaskContext | None) -> Iterator[Begin]:
    """A function that shows which stage of a compile begins, once the compile is no short one."""
    with _display(context) as show:
        stages = _Stages(show)
        timer = Timer(APPEARS_AFTER_S, stages.appear)
        timer.start()
        try:
            yield stages.begin
        finally:
            timer.cancel()
            timer.join()
            stages.end()


class _Stages:
    """The stage of a compile that runs; nothing is shown before `appear`, which a timer calls."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = Lock()
        self._now = Progress("compiling", 0, len(STAGES))
        self._begun = 0
        self._is_shown = False

    def begin(self, name: str) -> None:
        with self._lock:
            self._now = Progress("compiling", self._begun, len(STAGES), name)
            self._begun += 1
            if self._is_shown:
                self._show(self._now)

    def appear(self) -> None:
        with self._lock:
            self._is_shown = True
            self._show(self._now)

    def end(self) -> None:
        if self._is_shown:
            self._show(Progress("compiling", len(STAGES), len(STAGES)))


@contextmanager
def _display(context: TaskContext | None) -> Iterator[Show]:
    if context is not None:
        link = context.link()
        try:
            yield link.progress
        finally:
            link.close()
    elif sys.stdout is not None and sys.stdout.isatty():
        from csrun.context.bars import Bars

        bars = Bars()
        try:
            yield bars.update
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
