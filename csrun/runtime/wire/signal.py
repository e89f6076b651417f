"""A counter that one process raises and another waits for, without using the processor.

An eventfd holds the count in the kernel: a waiter takes all of it in one read, so that in a steady
flow most takes need no system call at all.
"""

import os
import select

from csrun.runtime.messages import Stop
from csrun.runtime.wire.channel import Channel


class Interrupted(Exception):  # noqa: N818  an event, not an error
    """The chief ended the run while this role was waiting; `stop` is its last message."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("the chief ended the run")
        self.stop = stop


class Counter:
    """A counter shared by descriptor. `descriptor` is taken over."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @staticmethod
    def create() -> "Counter":
        """A new counter at zero."""
        return Counter(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def raise_by(self, count: int = 1) -> None:
        """Add to the count and wake the waiter."""
        os.eventfd_write(self.descriptor, count)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


class Waiter:
    """The waiting side of a counter, which also notices the end of the run.

    While it waits it listens to `control`, the channel to the chief: a Stop ends the wait as
    Interrupted, a lost chief as PeerLost.
    """

    def __init__(self, counter: Counter, control: Channel) -> None:
        self._descriptor = counter.descriptor
        self._control = control
        self._available = 0
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(control.fileno(), select.POLLIN)

    def take(self) -> None:
        """Take one from the count, waiting for it."""
        while not self._available:
            try:
                self._available = os.eventfd_read(self._descriptor)
            except BlockingIOError:
                self._wait()
        self._available -= 1

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._control.fileno():
                message, _ = self._control.expect(Stop)
                raise Interrupted(message)
