"""python-ws: the weight streaming interpreter; by itself it is plain Python with a notice."""

import os
import sys

from csrun.context import current

NOTICE = (
    "python-ws: no csrun_wse around this run: it trains on the CPU, in one process "
    "(csrun_wse python-ws {script} runs it on a CS system)"
)


def main() -> None:
    """Become Python itself, in this process, with the same arguments."""
    if current() is None:
        script = " ".join(sys.argv[1:2])
        print(NOTICE.format(script=script), file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
