"""Notes between the wafer and a MemoryX task of its machine on a program, in numbers."""

from collections import deque

import numpy as np
import numpy.typing as npt

from csrun.executable import Plan
from csrun.runtime.store.pages import GroupPages
from csrun.runtime.wire.run_time_clock import awake_s
from csrun.runtime.wire.shared import Counter, SharedMemory, Waiter


def squares_of(plan: Plan) -> npt.NDArray[np.float64]:
    """Room for the sums of squares of a program's gradients, one a parameter; zeros add nothing."""
    return np.zeros(len(plan.parameters))


class Notes:
    """A block that both have mapped; the counters say when it has been written.

    steps: by the wafer, of each group the step that its newest gradients are of. squares: by
    MemoryX, of its gradients of a step. total: by the wafer, the sum of all tasks' squares. held:
    by MemoryX, the seconds that its updates have waited for checkpoints so far.
    Shapes: steps int64[groups], squares as of `squares_of`, total and held float64[1]
    """

    def __init__(self, memory: SharedMemory, plan: Plan) -> None:
        self._memory = memory
        groups = len(plan.groups)
        self.steps = memory.bytes[: 8 * groups].view(np.int64)
        numbers = memory.bytes[8 * groups :].view(np.float64)
        self.squares, self.total, self.held = numbers[:-2], numbers[-2:-1], numbers[-1:]

    @staticmethod
    def create(plan: Plan) -> "Notes":
        """Create the notes of a program."""
        nbytes = 8 * (len(plan.groups) + len(plan.parameters) + 2)
        return Notes(SharedMemory.create("notes", nbytes), plan)

    @property
    def descriptor(self) -> int:
        """For who else has them."""
        return self._memory.descriptor

    def close(self) -> None:
        self._memory.close()


class MemoryxEnd:
    """The wafer's end of what it shares of a program with a MemoryX task of its machine.

    `gradients` counts the groups that the wafer has delivered to the task, in the order of the
    plan's deliveries; `updates` those that the task has updated, in the same order.
    """

    def __init__(
        self, updates: Waiter, gradients: Counter, notes: Notes, pages: GroupPages | None = None
    ) -> None:
        self.updates, self.gradients, self.notes = updates, gradients, notes
        self.pages = pages or GroupPages()
        self.pending: deque[int] = deque()  # delivered groups whose update has not been seen

    def deliver(self, group: int, step: int) -> None:
        """The group's gradients of this step are in the task's store."""
        self.pending.append(group)
        # The note before the counter: who has taken from that must find the step.
        self.notes.steps[group] = step
        self.gradients.raise_by()

    def take(self) -> tuple[int, float]:
        """Wait until the task is done with a group, which was delivered first of those pending.

        And how long at most a checkpoint held it back meanwhile, in seconds.
        """
        held_s, began = float(self.notes.held[0]), awake_s()
        self.updates.take()
        held_s = float(self.notes.held[0]) - held_s
        return self.pending.popleft(), min(held_s, awake_s() - began)
