"""What it costs that a loop reads a value in each step: said once."""

import logging

from csrun.pytorch.capture import user_line

READ_IN_A_ROW = 20  # steps, before it is said

log = logging.getLogger("csrun")


class ReadingCost:
    """Counts the steps in a row of which a value was read."""

    def __init__(self) -> None:
        self._read, self._last = 0, -1

    def read(self, step: int) -> None:
        """A value of the loop's step is read."""
        self._read = self._read + 1 if step == self._last + 1 else 0
        self._last = step
        if self._read == READ_IN_A_ROW:
            log.warning(
                f"{user_line()}: the loop reads a value in each step, so that none is run ahead: "
                "an order to the wafer for each; read it every 50 steps to run up to 256 at a time"
            )
