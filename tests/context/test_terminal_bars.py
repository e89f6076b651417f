"""Progress display on a terminal."""

import os
import re
import sys

import pytest
from support.terminals import terminal

SHOW = """
from csrun.context import Progress
from csrun.context.terminal_bars import ProgressBars
bars = ProgressBars()
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


STATUS = """
from rich import get_console
from csrun.context import Progress
from csrun.context.terminal_bars import ProgressBars
now_s = [0.0]
get_console().get_time = lambda: now_s[0]
bars = ProgressBars()
for step in range(0, 400, 100):
    text = "loss 4.1919e-05, waiting: first group 18%"
    bars.update(Progress("training", step, 1000, text, "steps"))
    bars.write(f"line {step}\\n")
    now_s[0] += 0.3
bars.close()
print("closed")
"""


@pytest.mark.parametrize(
    ("columns", "detail"),
    [
        (100, "loss 4.1919e-05, waiting: first group 18% ETA"),
        (80, r"loss 4.1919e-05, waiting: f.*… ETA"),
    ],
)
def test_a_training_shows_its_step_rate_loss_wait_and_time_left_in_a_line(
    columns: int, detail: str
) -> None:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with terminal(sys.executable, "-c", STATUS, environment=environment) as tty:
        tty.wait_for("closed")
        assert tty.exit_code() == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", tty.shown).decode()
    status = [line for line in re.split(r"[\r\n]+", plain) if "300/1000" in line][-1]
    assert re.search(rf" 333 steps/s +{detail} 00:03", status), status
    assert len(status.rstrip()) <= columns
