"""python-ws: weight streaming interpreter, which is Python with a mode."""

import os
import sys

from csrun.base.mode import ExecutionMode
from csrun.base.version import VERSION
from csrun.context import interpreter_options


def main() -> None:
    """Run Python in this process with the same arguments."""
    if sys.argv[1:] == ["--version"]:
        print(f"python-ws {VERSION}, Python {sys.version.split()[0]}")
        return
    options = interpreter_options(ExecutionMode.WEIGHT_STREAMING)
    os.execv(sys.executable, [sys.executable, *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
