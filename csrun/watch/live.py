"""The live screen: draws snapshots on a terminal until the user quits."""

import io
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from itertools import groupby
from time import monotonic

from rich.console import Console

from csrun.base.errors import CsrunError
from csrun.watch.collect import Collector
from csrun.watch.keys import ScreenState, keys_in
from csrun.watch.screen import screen, sort_jobs
from csrun.watch.site_snapshot import SiteSnapshot
from csrun.watch.text_lines import Line

REFRESH_S = 1.0
LEAST_PRIORITY = 19
_KEY_BYTES = 64

Cancel = Callable[[int], str]


def show(collector: Collector, cancel: Cancel, job_id: int | None) -> None:
    """Display the site and a job until `q` or Ctrl-C; `cancel` cancels a job and returns a message.

    Raises: as `Collector.snapshot`
    """
    snapshot = collector.snapshot(job_id)
    os.nice(LEAST_PRIORITY)  # so that it takes almost no time from the CPUs of a job
    console = Console()
    with _deferred_errors(), _keys_unbuffered(), console.screen():
        try:
            _LiveScreen(collector, cancel, console).run(snapshot)
        except KeyboardInterrupt:
            return


class ScreenPainter:
    """Draws lines on a terminal's alternate screen, only those that have changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: Sequence[Line] = ()

    def forget(self, *_: object) -> None:
        """Draw all lines the next time."""
        self._shown = ()

    def draw(self, lines: Sequence[Line]) -> None:
        if len(lines) != len(self._shown):
            self._shown = [[]] * len(lines)
        rows = enumerate(zip(lines, self._shown, strict=True))
        with self._console:  # writes all of it at once
            for is_new, run in groupby(rows, lambda row: row[1][0] != row[1][1]):
                if is_new:
                    numbers, pairs = zip(*run, strict=True)
                    changed = [line for line, _ in pairs]
                    self._console.update_screen_lines(changed, y=numbers[0])
        self._shown = lines


class _LiveScreen:
    def __init__(self, collector: Collector, cancel: Cancel, console: Console) -> None:
        self._collector = collector
        self._cancel = cancel
        self._console = console
        self._painter = ScreenPainter(console)
        signal.signal(signal.SIGCONT, self._painter.forget)  # a shell has used the terminal
        self._notices: list[str] = []  # threads that wait for the end of a job

    def run(self, snapshot: SiteSnapshot) -> None:
        state = ScreenState(None if snapshot.job is None else snapshot.job.job_id)
        while not state.is_over:
            if self._notices:
                state = replace(state, notice=self._notices.pop())
            self._painter.draw(screen(snapshot, self._console, state.view))
            state = self._after_keys(state, snapshot)
            if not state.is_over:
                snapshot = self._collector.snapshot(state.selected)
                if state.selected is None and snapshot.job is not None:
                    state = replace(state, selected=snapshot.job.job_id)

    def _after_keys(self, state: ScreenState, snapshot: SiteSnapshot) -> ScreenState:
        """Return the state after the pressed keys, or after a while without any."""
        until_s = monotonic() + REFRESH_S
        while (left_s := until_s - monotonic()) > 0:
            if not select.select([sys.stdin], [], [], left_s)[0]:
                return state
            if not (data := os.read(sys.stdin.fileno(), _KEY_BYTES)):
                return replace(state, is_over=True)  # the terminal is gone
            before = state
            for key in keys_in(data):
                state = state.pressed(key, sort_jobs(snapshot.jobs))
            if state.cancels is not None:
                state = self._cancelling(state)
            if state != before:
                return state
        return state

    def _cancelling(self, state: ScreenState) -> ScreenState:
        job_id = state.cancels
        assert job_id is not None

        def end_job() -> None:
            try:
                self._notices.append(f"job {job_id}: {self._cancel(job_id)}")
            except CsrunError as error:
                self._notices.append(str(error))

        # A job may take its whole grace period to end; the screen continues meanwhile.
        threading.Thread(target=end_job, daemon=True).start()
        return replace(state, cancels=None, notice=f"job {job_id}: cancelling")


class _DistinctText(io.TextIOBase):
    """Written texts, without repetitions."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def write(self, text: str) -> int:
        self.texts[text] = None
        return len(text)


@contextmanager
def _deferred_errors() -> Iterator[None]:
    """Show standard error's text after the block."""
    heard = _DistinctText()
    try:
        with redirect_stderr(heard):
            yield
    finally:
        for text in filter(str.strip, heard.texts):
            print(text, file=sys.stderr)


@contextmanager
def _keys_unbuffered() -> Iterator[None]:
    """Read keys unbuffered, without an echo."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
