"""Numbers exchanged between the wafer and a MemoryX task of its machine about a program."""

from collections import deque

import numpy as np
import numpy.typing as npt

from csrun.executable import Plan
from csrun.runtime.store.pages import GroupPages
from csrun.runtime.wire.run_time_clock import awake_s
from csrun.runtime.wire.shared import Counter, SharedMemory, Waiter


def squares_of(plan: Plan) -> npt.NDArray[np.float64]:
    """Allocate the sums of squares of a program's gradients, one per parameter; zeros add
    nothing.
    """
    return np.zeros(len(plan.parameters))


class MailboxBlock:
    """Block mapped by both; the counters signal when it was written.

    steps: for each group the step of its newest gradients, written by the wafer.
    squares: sums of squares of its gradients of a step, written by MemoryX.
    total: sum of all tasks' squares, written by the wafer.
    held: seconds that updates have waited for checkpoints so far, written by MemoryX.
    Shapes: steps int64[groups], squares as of `squares_of`, total and held float64[1]
    """

    def __init__(self, memory: SharedMemory, plan: Plan) -> None:
        self._memory = memory
        groups = len(plan.groups)
        self.steps = memory.bytes[: 8 * groups].view(np.int64)
        numbers = memory.bytes[8 * groups :].view(np.float64)
        self.squares, self.total, self.held = numbers[:-2], numbers[-2:-1], numbers[-1:]

    @staticmethod
    def create(plan: Plan) -> "MailboxBlock":
        """Create the mailbox of a program."""
        nbytes = 8 * (len(plan.groups) + len(plan.parameters) + 2)
        return MailboxBlock(SharedMemory.create("notes", nbytes), plan)

    @property
    def descriptor(self) -> int:
        """Descriptor for the other process."""
        return self._memory.descriptor

    def close(self) -> None:
        self._memory.close()


class MemoryxLink:
    """Wafer's end of a program's memory shared with a MemoryX task of its machine.

    `gradients` counts the groups that the wafer has delivered to the task, in the order of the
    plan's deliveries; `updates` those that the task has updated, in the same order.
    """

    def __init__(
        self,
        updates: Waiter,
        gradients: Counter,
        mailbox: MailboxBlock,
        pages: GroupPages | None = None,
    ) -> None:
        self.updates, self.gradients, self.mailbox = updates, gradients, mailbox
        self.pages = pages or GroupPages()
        self.pending: deque[int] = deque()  # delivered groups whose update has not been confirmed

    def deliver(self, group: int, step: int) -> None:
        """Deliver the group's gradients, which are in the task's store."""
        self.pending.append(group)
        # The step before the counter: a process that takes from the counter must find it.
        self.mailbox.steps[group] = step
        self.gradients.raise_by()

    def take(self) -> tuple[int, float]:
        """Wait until the task is done with a group, the first pending one.

        Returns how long at most a checkpoint held it back meanwhile, in seconds.
        """
        if self.updates.ready():
            self.updates.take()
            return self.pending.popleft(), 0.0
        held_s, began = float(self.mailbox.held[0]), awake_s()
        self.updates.take()
        held_s = float(self.mailbox.held[0]) - held_s
        return self.pending.popleft(), min(held_s, awake_s() - began)
