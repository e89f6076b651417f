"""Start barrier of a node's tasks: none begins before all are alive."""

import os


class StartBarrier:
    """Barrier created by the fork server, passed once by every task forked from it."""

    def __init__(self, tasks: int) -> None:
        self._missing = tasks
        self._is_open = False
        self._arrivals = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._opening, self._held_shut = os.pipe()

    def fileno(self) -> int:
        """Descriptor that is readable when tasks have arrived."""
        return self._arrivals

    def count_arrivals(self) -> bool:
        """Count arrived tasks; return True once, when the last task arrives and the gate opens.

        Restarted tasks are counted again, because some tasks of the first start may arrive after
        the opening.
        """
        self._missing -= os.eventfd_read(self._arrivals)
        if self._is_open or self._missing > 0:
            return False
        self._is_open = True
        os.close(self._held_shut)
        return True

    def enter(self) -> None:
        """Report arrival and wait for the other tasks; called in a forked task. The gate opens once
        per job.
        """
        if self._is_open:
            self.leave()
            return
        os.close(self._held_shut)  # the reader gets the end of file when no process holds this end
        os.eventfd_write(self._arrivals, 1)
        os.read(self._opening, 1)
        self.leave()

    def leave(self) -> None:
        """Close the gate without reporting arrival."""
        os.close(self._arrivals)
        os.close(self._opening)
