"""The progress display on a real terminal."""

import os
import sys

from support.terminals import terminal

SHOW = """
from csrun.context import Progress
from csrun.context.bars import Bars
bars = Bars()
for done, total in ((0, 0), (3, 0), (4, 5)):
    bars.update(Progress("evaluating", done, total))
    input()
bars.close()
print("closed")
"""


def test_no_total_is_shown_before_it_is_known() -> None:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with terminal(sys.executable, "-c", SHOW, environment=environment) as tty:
        for shown in ("0/?", "3/?", "4/5"):
            tty.wait_for(shown)
            tty.type("\n")
        tty.wait_for("closed")
        assert tty.exit_code() == 0
    assert b"/100" not in tty.shown
