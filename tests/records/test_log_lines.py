"""Log lines in the original's format."""

import logging
import subprocess
import sys

from csrun.records import log_lines
from csrun.records.performance import Rates


def test_the_step_line_has_the_original_fields() -> None:
    line = log_lines.step("cs2-02", 1000, 6.6875, Rates(27.514, 27.526))
    original = (
        "| Train Device=cs2-02, Step=1000, Loss=6.68750, Rate=27.51 samples/sec, "
        "GlobalRate=27.53 samples/sec"
    )
    assert line.endswith(original)
    assert line.startswith("global_step = 1000, loss = 6.6875 ")


def test_the_lines_at_the_end() -> None:
    assert log_lines.training_finished(384, 1.5) == (
        "Training finished with 384 samples in 1.500 seconds, 256.00 samples/second."
    )
    assert log_lines.training_finished(0, 0.0).endswith("0.00 samples/second.")
    assert log_lines.final_loss(0.25) == "Loss for final step: 0.25."
    results = {"loss": 0.5, "global_step": 10.0, "accuracy": 0.975}
    assert log_lines.evaluated(results) == (
        "Saving dict for global step 10: accuracy = 0.975, loss = 0.5"
    )


def test_the_coordinators_line_is_the_published_one() -> None:
    assert log_lines.coordinator_up(1295, 308274) == (
        "Coordinator fully up. Waiting for Streaming "
        "(using 0.42% out of 308274 cores on the fabric)"
    )


def test_a_terminal_shows_a_step_in_half_a_line_and_warnings_in_colour() -> None:
    line = "INFO:csrun:" + log_lines.step("cs2-02", 1000, 0.04284, Rates(76415.12, 27.526))
    shown = log_lines.for_terminal(line, colour=True)
    assert shown == "step 1000  loss 0.04284  76,415 samples/s (average 27.5)"
    assert log_lines.for_terminal("INFO:csrun:Fabric programmed", True) == "Fabric programmed"
    warning = "WARNING:csrun:the disk is slow"
    assert log_lines.for_terminal(warning, False) == "warning: the disk is slow"
    assert log_lines.for_terminal(warning, True) == "\x1b[33mwarning: the disk is slow\x1b[0m"
    others = "INFO:root:global_step = 1"
    assert log_lines.for_terminal(others, True) == others


SCRIPT = """
import logging
from csrun.records import log_lines
log_lines.configure()
log_lines.configure()
logging.getLogger("csrun").info(log_lines.saving_checkpoint(0))
"""


def test_lines_are_printed_once_under_our_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stderr == "INFO:csrun:Saving checkpoint at global step 0\n"
    assert done.stdout == ""


def test_a_user_who_has_set_up_logging_keeps_it() -> None:
    logger, root = logging.getLogger("csrun"), logging.getLogger()
    before = list(logger.handlers)
    handler = logging.NullHandler()
    root.addHandler(handler)
    try:
        log_lines.configure()
        assert logger.handlers == before
    finally:
        root.removeHandler(handler)


def test_a_line_is_printed_once_whatever_a_library_does_to_the_root_logger() -> None:
    program = (
        "import logging; from csrun.records import log_lines; log_lines.configure();"
        "logging.warning('a library'); logging.getLogger('csrun').info('a line')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == "WARNING:root:a library\nINFO:csrun:a line\n"
