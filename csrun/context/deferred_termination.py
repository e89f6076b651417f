"""Termination of a task: immediately, or at the next step boundary of its training.

All tasks of a job get SIGTERM at the same time (SIGINT if it comes from a terminal), from the
launcher or from Slurm. Outside of a run, the task wrapper raises Terminated in the main thread at
once. In a run of the estimator:

- The chief of a training continues to the next step boundary, writes a checkpoint, and ends. It
  ends immediately when a peer is lost, when the job's grace period is nearly over, and on a second
  SIGINT that arrives after BURST_S.
- MemoryX, the wafer and the streamers continue until the chief has ended, because the chief still
  reads the weights from them. The launcher signals them again when the chief's process has ended,
  for a task that does not check its connection to the chief at that moment.
- Before the training begins, for instance in a compile, and in an evaluation there is nothing to
  save: the chief ends immediately, and its peers with it.
"""

import os
import signal
import threading
from collections.abc import Callable
from time import monotonic, sleep
from types import FrameType
from typing import Any, Self

from csrun.base.files import read_start
from csrun.base.mode import BURST_S
from csrun.context.job import REASON_FILE
from csrun.context.task import current

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
DISCARD_S = 2.0  # part of the grace period that is reserved for cleaning up
DISCARD_SHARE = 0.2  # the same for a short grace period
REASON_BYTES = 200
REASON_S = 2.0  # for a launcher to write it
REASON_SHARE = 0.1  # the same of a short grace
_POLL_S = 0.02
_SENDERS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "terminal closed"}


def describe_signal(signum: int) -> str:
    """A signal as the event that usually sends it."""
    name = signal.Signals(signum).name
    return f"{_SENDERS[signum]} ({name})" if signum in _SENDERS else name


def reason_to_end(asked: signal.Signals) -> str:
    """Return the reason that the launcher recorded for ending this process, else the signal.

    Tasks get SIGTERM whatever the event was: Ctrl-C, a time limit. Slurm signals them before their
    launcher, which is waited for.
    """
    context = current()
    if context is None:
        return describe_signal(asked)
    until_s = monotonic() + reason_wait_s(context.job.grace_s)
    while not (said := read_start(context.job_dir / REASON_FILE, REASON_BYTES)):
        if monotonic() >= until_s:
            return describe_signal(asked)
        sleep(_POLL_S)
    return said


def reason_wait_s(grace_s: float) -> float:
    """Return the time for which tasks wait until their launcher has written the reason."""
    return min(REASON_S, REASON_SHARE * grace_s)


def never() -> bool:
    """Return False: nothing ends the block early."""
    return False


class DeferredTermination:
    """Context manager that defers a signal to end until the block is left.

    The signal is delivered immediately if `is_over` returns True when it arrives, when `grace_s` is
    nearly over, and when it is a second Ctrl-C. Outside of the main thread, which alone receives
    signals, this has no effect.

    Units: received_at_s of CLOCK_MONOTONIC
    """

    def __init__(self, is_over: Callable[[], bool] = never, grace_s: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self.received_at_s = 0.0
        self.grace_s = grace_s
        self.is_late = False
        self._is_over = is_over
        self._pid = os.getpid()
        self._old: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def left_s(self) -> float | None:
        """Remaining grace period of an operation that starts now, in seconds; None if unlimited."""
        if self.grace_s is None:
            return None
        return self.received_at_s + _last_moment_s(self.grace_s) - monotonic()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in ENDING_SIGNALS:
                # A signal that is ignored, as under nohup, stays ignored.
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._old[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        asked = self.received if self._old else None
        old = self._restore()
        if asked is not None:
            _deliver(asked, old[asked], None)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        came = signal.Signals(signum)
        is_second_key = self.received is signal.SIGINT and came is signal.SIGINT
        is_second_key &= monotonic() - self.received_at_s >= BURST_S
        # in a process that the user's code forked, which has to end
        is_worker = os.getpid() != self._pid
        if is_worker or self.is_late or is_second_key or self._is_over():
            _deliver(came, self._restore()[came], frame)
        elif self.received is None:
            self.received, self.received_at_s = came, monotonic()
            self._set_timer()

    def _set_timer(self) -> None:
        if self.grace_s is not None:
            self._timer = threading.Timer(_last_moment_s(self.grace_s), self._interrupt_main_thread)
            self._timer.daemon = True
            self._timer.start()

    def _interrupt_main_thread(self) -> None:
        """Called in the timer's thread: interrupt the main thread, whatever it waits for."""
        self.is_late = True
        main = threading.main_thread().ident
        if main is not None and self._old:
            # A signal interrupts the system call in which the main thread waits; a flag would not.
            signal.pthread_kill(main, signal.SIGTERM)

    def _restore(self) -> dict[signal.Signals, Any]:
        """Restore the previous signal handlers."""
        old, self._old = self._old, {}
        if self._timer is not None:
            self._timer.cancel()
        for signum, handler in old.items():
            signal.signal(signum, handler)
        return old


def _last_moment_s(grace_s: float) -> float:
    return grace_s - min(DISCARD_S, DISCARD_SHARE * grace_s)


def _deliver(signum: signal.Signals, handler: Any, frame: FrameType | None) -> None:
    if callable(handler):
        handler(signum, frame)  # not raised again: the interrupted system call would be resumed
    else:
        signal.raise_signal(signum)
