"""The step that a loop is in."""

from dataclasses import dataclass

from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.revalidation import Revalidation
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.step_status import StepPhase, StepStatus
from csrun.pytorch.step.tokens import StepOutputs
from csrun.pytorch.step.variant import Batches, StepVariant


@dataclass(eq=False, slots=True)
class LoopStep:
    """The step that a loop is in, from its batch to `optimizer.step()` or the next batch.

    batch: its number among the loader's. variant: None until it is known, in a step that is
    recorded for the first time. guards: number of the state of the guards at the batch. calls: how
    many of the expected calls were made. place: how many batches of its `optimizer.step()` came
    before it, from `backward()` or the first value read on. numbers: the optimizer's, that it was
    ordered with. strayed: a call of the expected function with other arguments, for messages.
    revalidation: set where it is compared with step 1 again.
    """

    outputs: StepOutputs
    batches: Batches
    batch: int
    variant: StepVariant | None = None
    guards: int = 0
    recorded: RecordedStep | None = None
    calls: int = 0
    place: int = 0
    numbers: tuple[float, ...] = ()
    strayed: str = ""
    revalidation: Revalidation | None = None

    @property
    def status(self) -> StepStatus:
        return self.outputs.status

    @property
    def expected(self) -> Expected | None:
        """The call of step 1 that comes next; None if there is none, or the step is recorded."""
        if self.variant is None or self.recorded is not None:
            return None
        if self.status.is_over or self.is_revalidating:
            return None
        calls = self.variant.shape.calls
        return None if self.calls == len(calls) else calls[self.calls]

    @property
    def is_revalidating(self) -> bool:
        """True if the user's code runs to be compared with step 1, not for the loop."""
        return self.revalidation is not None and self.revalidation.is_recording

    @property
    def has_gradients(self) -> bool:
        """True if the loop is between `backward()` and `optimizer.step()`."""
        return self.status.phase is StepPhase.BACKWARD

    @property
    def trains(self) -> bool:
        """True if its variant has a backward pass."""
        return self.variant is not None and self.variant.trains
