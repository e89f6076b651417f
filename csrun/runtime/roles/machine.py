"""What the chief drives, wherever its parts run."""

from typing import Protocol

from csrun.executable import Plan
from csrun.executable.bind import Array
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire.messages import Results, StepsDone


class Machine(Protocol):
    """A loaded Executable with everything around it that a step needs.

    `state` is what a checkpoint holds, by name; it may be written before the first call of
    `run`, and read between calls.
    `device` is how log lines name it; `feeding` says who makes its batches.
    """

    plan: Plan
    state: dict[str, Array]
    device: str
    programming_time_s: float
    feeding: Feeding

    def run(self, first: int, count: int) -> StepsDone:
        """Run up to `count` ≤ `result_slots(plan)` steps from `first`; committed on return."""

    def result(self, slot: int, step: int) -> StepResult:
        """The result of the last call's step number `slot`."""

    def close(self, results: Results) -> None:
        """End the run in all its parts, which return `results`."""
