"""Learning-rate schedules: what a program's updates, and the log, take from the step's index."""

import msgspec


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """The same rate at every step."""

    learning_rate: float

    def at(self, step: int) -> float:
        """The rate of the update that global step `step` (from 0) makes."""
        return self.learning_rate


Schedule = Constant
