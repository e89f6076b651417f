"""Signals that end a job, handled while its launcher waits and while it writes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from csrun.base.errors import CsrunError
from csrun.context.deferred_termination import describe_signal

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignalError(CsrunError):
    """SIGTERM or SIGHUP came before the job ran; Ctrl-C is a KeyboardInterrupt.

    reason: event that has sent the signal, if it is known
    """

    def __init__(self, signum: int, reason: str = "") -> None:
        self.signum = signum
        self.exit_code = 128 + signum
        super().__init__(f"{reason or describe_signal(signum)}: job ended before it started")


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a job, without a hang-up ignored by nohup."""
    return tuple(s for s in ENDING_SIGNALS if s is not signal.SIGHUP or not _is_ignored(s))


@contextmanager
def raised_as_errors() -> Iterator[None]:
    """Context manager in which a signal to end is raised as an exception, once."""
    old = {signum: signal.getsignal(signum) for signum in handled_signals()}
    for signum in old:
        if signum is not signal.SIGINT:
            signal.signal(signum, _raise)
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


class DeferredSignals:
    """Context manager that delivers signals at its end, around work that must not be interrupted.

    Uses handlers instead of a signal mask, which would apply to one thread, and to started
    programs.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(self, *exc: object) -> None:
        self._deliver()

    @contextmanager
    def deliver_signals(self) -> Iterator[None]:
        """Deliver signals in this context, the deferred one first."""
        try:
            self._deliver()
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        for signum in ENDING_SIGNALS:
            if not _is_ignored(signum):
                self._handlers[signum] = signal.signal(signum, self._remember)

    def _deliver(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        if self._came:
            first = self._came[0]
            self._came.clear()
            signal.raise_signal(first)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self._came.append(signum)


def _raise(signum: int, frame: FrameType | None) -> None:
    # Once: a second signal must not interrupt the cleanup after the first.
    for other in handled_signals():
        signal.signal(other, signal.SIG_IGN)
    raise EndedBySignalError(signum)


def _is_ignored(signum: signal.Signals) -> bool:
    return signal.getsignal(signum) is signal.SIG_IGN
