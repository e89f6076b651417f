"""The signals that ask a launcher to end its job, while it waits and while it writes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from csrun.errors import CsrunError

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignalError(CsrunError):
    """SIGTERM or SIGHUP came before the job ran; Ctrl-C is a KeyboardInterrupt."""

    def __init__(self, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(f"{signal.Signals(signum).name}: the job was ended before it ran")


def heeded() -> tuple[signal.Signals, ...]:
    """The signals that end a job: not a hang-up that nohup has made us ignore."""
    return tuple(s for s in ENDING_SIGNALS if s is not signal.SIGHUP or not _is_ignored(s))


@contextmanager
def raised_as_errors() -> Iterator[None]:
    """An ending signal is an exception in here, once."""
    raising = [signum for signum in heeded() if signum is not signal.SIGINT]
    old = {signum: signal.signal(signum, _raise) for signum in raising}
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes in here is delivered afterwards: for what must not be left half done."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _raise(signum: int, frame: FrameType | None) -> None:
    for other in heeded():
        signal.signal(other, signal.SIG_IGN)
    raise EndedBySignalError(signum)


def _is_ignored(signum: signal.Signals) -> bool:
    return signal.getsignal(signum) is signal.SIG_IGN
