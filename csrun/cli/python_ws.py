"""python-ws: the weight streaming interpreter; by itself it is plain Python with a notice."""

import os
import sys
from contextlib import suppress

from csrun.context import current

NOTICE = (
    "python-ws: run directly, this trains on the CPU in one process; start it by csrun_wse to use"
    " a wafer\n"
)


def main() -> None:
    """Become Python itself, in this process, with the same arguments."""
    if current() is None:
        with suppress(OSError):  # a closed or full stream keeps nobody from training
            os.write(2, NOTICE.encode())
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
