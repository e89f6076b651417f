"""Excepthook of a script run by plain Python: user errors print one line, as in a job."""

import sys
from types import TracebackType

from csrun.base.errors import CsrunError


def install_excepthook() -> None:
    """Install an excepthook that prints csrun's errors in one line and exits with their code.

    Other errors keep their traceback. An interactive interpreter continues after the line.
    """
    usual = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, CsrunError):
            usual(kind, error, traceback)
            return
        print(f"error: {error}", file=sys.stderr)
        if not hasattr(sys, "ps1"):
            sys.exit(error.exit_code)

    sys.excepthook = report
