"""The live screen: draws snapshots on a terminal until the user quits."""

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

from rich.console import Console
from rich.live import Live

from csrun.base.errors import CsrunError
from csrun.watch.collect import Collector
from csrun.watch.keys import ScreenState, keys_in
from csrun.watch.screen import in_order, screen
from csrun.watch.site_snapshot import SiteSnapshot

REFRESH_S = 1.0
LEAST_PRIORITY = 19
_KEY_BYTES = 64

Cancel = Callable[[int], str]


def show(collector: Collector, cancel: Cancel, job_id: int | None) -> None:
    """Draw the site and a job until `q` or Ctrl-C; `cancel` ends a job and says what came of it.

    Raises: as `Collector.snapshot`
    """
    snapshot = collector.snapshot(job_id)
    os.nice(LEAST_PRIORITY)  # on busy CPUs, those of a job, it takes next to nothing
    console = Console()
    with _keys_unbuffered(), Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            _LiveScreen(collector, cancel, console, live).run(snapshot)
        except KeyboardInterrupt:
            return


class _LiveScreen:
    def __init__(self, collector: Collector, cancel: Cancel, console: Console, live: Live) -> None:
        self._collector = collector
        self._cancel = cancel
        self._console = console
        self._live = live
        self._notices: list[str] = []  # of threads that wait for the end of a job

    def run(self, snapshot: SiteSnapshot) -> None:
        state = ScreenState(None if snapshot.job is None else snapshot.job.job_id)
        while not state.is_over:
            if self._notices:
                state = replace(state, notice=self._notices.pop())
            self._live.update(screen(snapshot, self._console, state.look), refresh=True)
            state = self._after_keys(state, snapshot)
            if not state.is_over:
                snapshot = self._collector.snapshot(state.selected)
                if state.selected is None and snapshot.job is not None:
                    state = replace(state, selected=snapshot.job.job_id)

    def _after_keys(self, state: ScreenState, snapshot: SiteSnapshot) -> ScreenState:
        """The state after the keys that came, or after a while without any."""
        until_s = monotonic() + REFRESH_S
        while (left_s := until_s - monotonic()) > 0:
            if not select.select([sys.stdin], [], [], left_s)[0]:
                return state
            if not (data := os.read(sys.stdin.fileno(), _KEY_BYTES)):
                return replace(state, is_over=True)  # the terminal is gone
            before = state
            for key in keys_in(data):
                state = state.pressed(key, in_order(snapshot.jobs))
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

        # A job may take its whole grace period to end; the screen goes on meanwhile.
        threading.Thread(target=end_job, daemon=True).start()
        return replace(state, cancels=None, notice=f"job {job_id}: cancelling")


@contextmanager
def _keys_unbuffered() -> Iterator[None]:
    """Get keys at once, without an echo."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
