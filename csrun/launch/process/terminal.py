"""The terminal that a command is given: as it was before, whatever the command did to it."""

import os
import signal
import termios
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Terminal:
    """The controlling terminal of this process's group, with the modes it had."""

    fd: int
    group: int
    modes: list[Any]

    @classmethod
    def remember(cls) -> Self | None:
        """The terminal that this process is in the foreground of, if there is one."""
        try:
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        group = os.getpgrp()
        if os.tcgetpgrp(fd) != group:  # in the background, it is not ours to touch
            os.close(fd)
            return None
        return cls(fd, group, termios.tcgetattr(fd))

    def restore(self) -> None:
        """Bring modes and foreground group back, unless another living group has taken over.

        To be called when the command and all that descends from it are gone: a group that is in the
        foreground then is a shell's, which has set the terminal up for itself.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        with suppress(OSError, termios.error):  # the terminal may be gone, too
            if not self._is_taken():
                os.tcsetpgrp(self.fd, self.group)
                termios.tcsetattr(self.fd, termios.TCSANOW, self.modes)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _is_taken(self) -> bool:
        foreground = os.tcgetpgrp(self.fd)
        if foreground in (0, self.group):
            return False
        try:
            os.killpg(foreground, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True
