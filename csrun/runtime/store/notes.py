"""What the wafer and a MemoryX task of its machine tell each other of a program, in numbers."""

import numpy as np
import numpy.typing as npt

from csrun.executable import Plan
from csrun.runtime.wire.shared import SharedMemory


def squares_of(plan: Plan) -> npt.NDArray[np.float64]:
    """Room for the sums of squares of a program's gradients, one a parameter; zeros add nothing."""
    return np.zeros(len(plan.parameters))


class Notes:
    """A block that both have mapped; the counters say when it has been written.

    steps: by the wafer, of each group the step that its newest gradients are of. squares: by
    MemoryX, of its gradients of a step. total: by the wafer, the sum of all tasks' squares.
    Shapes: steps int64[groups], squares as of `squares_of`, total float64[1]
    """

    def __init__(self, memory: SharedMemory, plan: Plan) -> None:
        self._memory = memory
        groups = len(plan.groups)
        self.steps = memory.bytes[: 8 * groups].view(np.int64)
        numbers = memory.bytes[8 * groups :].view(np.float64)
        self.squares, self.total = numbers[:-1], numbers[-1:]

    @staticmethod
    def create(plan: Plan) -> "Notes":
        """Those of a program."""
        nbytes = 8 * (len(plan.groups) + len(plan.parameters) + 1)
        return Notes(SharedMemory.create("notes", nbytes), plan)

    @property
    def descriptor(self) -> int:
        """For who else has them."""
        return self._memory.descriptor

    def close(self) -> None:
        self._memory.close()
