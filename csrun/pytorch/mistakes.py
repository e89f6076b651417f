"""A script without csrun around it ends on a user's mistake with one line, as a job does."""

import sys
from types import TracebackType

from csrun.base.errors import CsrunError


def told_in_one_line() -> None:
    """Have Python say what the user is to correct, without the frames that lead to it.

    The exit code is csrun's own, as of `run` of a run.py. All other errors keep their traceback.
    """
    usual = sys.excepthook

    def tell(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, CsrunError):
            usual(kind, error, traceback)
            return
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

    sys.excepthook = tell
