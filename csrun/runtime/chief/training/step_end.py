"""Program that ends each step of a training: an update from the gradients of all parts."""

from dataclasses import dataclass

from csrun.executable.arrays import Batch
from csrun.runtime.chief.machine import Program
from csrun.runtime.wire.messages import StepOrder


@dataclass(frozen=True)
class StepEnd:
    """A program over the machine's store that ends each step; its batch is the same each time.

    Shapes: batch as the program's inputs
    """

    program: Program
    batch: Batch

    def run(self, step: int) -> float:
        """End the step of this number, from 0; return the seconds that it took."""
        self.program.push(self.batch)
        return self.program.run(StepOrder(step, 1)).seconds
