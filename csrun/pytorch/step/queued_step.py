"""Entries of a loop's queue: steps, and batches of steps with several batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

import torch

from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.variant import StepVariant
from csrun.runtime.wire.messages import AccumulatedBatches

Inputs = tuple[torch.Tensor, ...]
Numbers = tuple[float, ...]  # the optimizer's numbers for one step, such as the learning rate


class QueuedWork(Enum):
    """Kind of a queue entry."""

    STEP = auto()  # a batch with its update, or a batch of an evaluation
    BATCH = auto()  # a batch whose gradients are accumulated
    UPDATE = auto()  # the update of batches that have run


@dataclass(eq=False, slots=True)  # not frozen, which would take a microsecond more in each step
class QueuedStep:
    """Entry of a loop's queue.

    batch: its number among the loader's. place: how many batches of the step came before it.
    inputs: all inputs of its program, if some do not come from a loader.
    """

    variant: StepVariant
    outputs: StepOutputs
    batch: int
    numbers: Numbers
    place: int = 0
    work: QueuedWork = QueuedWork.STEP
    inputs: Inputs | None = None

    @property
    def ends_step(self) -> bool:
        """True if the update follows, in a training."""
        return self.work is not QueuedWork.BATCH

    @property
    def program_key(self) -> tuple[StepVariant, bool]:
        """Key of entries that may share an order."""
        return self.variant, self.work is QueuedWork.UPDATE

    def follows(self, before: "QueuedStep") -> bool:
        """True if one order may contain both."""
        if self.inputs is not None:
            return False
        place = 0 if before.ends_step else before.place + 1
        return self.batch == before.batch + 1 and self.place == place


def in_a_row(steps: Sequence[QueuedStep]) -> int:
    """Return how many of the first entries may be in one order."""
    cuts = (i for i, (a, b) in enumerate(pairwise(steps), 1) if not b.follows(a))
    return next(cuts, len(steps))


def accumulated_batches_of(steps: Sequence[QueuedStep]) -> AccumulatedBatches:
    """Return which entries end a training step."""
    return AccumulatedBatches(steps[0].place, tuple(step.ends_step for step in steps))
