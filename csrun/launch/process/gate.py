"""Start barrier of a node's tasks: none begins before all are alive."""

import os


class Gate:
    """Made by the fork server, passed once by every task that is forked from it."""

    def __init__(self, tasks: int) -> None:
        self._missing = tasks
        self._is_open = False
        self._arrivals = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._opening, self._held_shut = os.pipe()

    def fileno(self) -> int:
        """The descriptor that is readable when tasks have reported in."""
        return self._arrivals

    def take_arrivals(self) -> bool:
        """Count who has reported in; with the last task the gate opens, and this is True, once.

        Tasks that have started again are counted again: of those that came before the opening,
        some may report in after it.
        """
        self._missing -= os.eventfd_read(self._arrivals)
        if self._is_open or self._missing > 0:
            return False
        self._is_open = True
        os.close(self._held_shut)
        return True

    def enter(self) -> None:
        """Report in and wait for the others; in a forked task. It opens once for all of a job."""
        if self._is_open:
            self.leave()
            return
        os.close(self._held_shut)  # the reader's end sees the end when nobody holds this one
        os.eventfd_write(self._arrivals, 1)
        os.read(self._opening, 1)
        self.leave()

    def leave(self) -> None:
        """Let go of the gate without a word."""
        os.close(self._arrivals)
        os.close(self._opening)
