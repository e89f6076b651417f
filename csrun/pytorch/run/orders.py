"""Orders of steps to the wafer, one of which may run while the loop continues.

Otherwise, in a loop that reads its loss regularly, the wafer would wait while the loop makes steps,
and the loop while they run. Steps are ordered early if no more can be requested from them than
their program returns: their variant has run before, and the loop holds no other value of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, takewhile

from csrun.base.errors import CsrunError
from csrun.pytorch.run.replay import Replay
from csrun.pytorch.run.script_machine import keep_norms, keep_results
from csrun.pytorch.step.queued_step import QueuedStep, accumulated_batches_of
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.weights.sync import WeightSync
from csrun.runtime.chief.machine import OrderedSteps, Program
from csrun.runtime.chief.training.step_orders import OrderSplitter
from csrun.runtime.chief.training.training import Training
from csrun.runtime.wire.messages import AccumulatedBatches, StepOrder

EARLIEST = 4  # minimum number of steps that are ordered early


@dataclass(frozen=True)
class _InFlight:
    """Steps of one variant, of which at least some are ordered. ends: those with an update."""

    variant: StepVariant
    program: Program
    steps: list[QueuedStep]
    ends: list[QueuedStep]
    training: Training
    order: OrderedSteps


class TrainingOrders:
    """Orders of the training. users: the user's objects, which differ from the store after the
    first.
    """

    def __init__(self, users: WeightSync, replay: Replay) -> None:
        self._users, self._replay = users, replay
        self._running: StepVariant | None = None
        self._program: Program | None = None
        self._under_way: _InFlight | None = None

    @property
    def is_in_progress(self) -> bool:
        """True if an order has no answer yet, or one that was not read."""
        return self._under_way is not None

    @property
    def steps(self) -> Sequence[QueuedStep]:
        """Steps of the order in progress."""
        return self._under_way.steps if self._under_way is not None else ()

    @property
    def is_done(self) -> bool:
        """True if `finish` will not wait."""
        return self._under_way is not None and self._under_way.order.is_done

    def run(
        self,
        training: Training,
        variant: StepVariant,
        program: Program,
        steps: list[QueuedStep],
        accumulates: bool,
    ) -> None:
        """Run steps of a variant with its program. accumulates: they are batches of steps."""
        self._running, self._program = variant, program
        training.use(program)
        while steps:
            self.begin(training, steps, accumulated_batches_of(steps) if accumulates else None)
            steps = self.finish(training)

    def update(
        self, training: Training, variant: StepVariant, program: Program, step: QueuedStep
    ) -> None:
        """Apply the update of a step whose batches have all run."""
        training.use(program)
        self._running = self._program = None
        self._begin(training, variant, program, [], [step], AccumulatedBatches(step.place))
        self._finish(training)

    def ready(self, queued: list[QueuedStep]) -> int:
        """Return how many of the next steps may be ordered early; the newest may still be read."""
        variant, program = self._running, self._program
        if variant is None or program is None or variant.program is not program:
            return 0
        if not program.runs_asynchronously or not queued or queued[0].batch != variant.batches.next:
            return 0
        follow = zip(queued[:-1], count(queued[0].batch), strict=False)
        return sum(1 for _ in takewhile(lambda each: _is_ready(variant, *each), follow))

    def begin(
        self,
        training: Training,
        steps: list[QueuedStep],
        accumulation: AccumulatedBatches | None = None,
    ) -> None:
        """Order steps of the variant that has run last. accumulation: which batches end a step."""
        variant, program = self._running, self._program
        assert variant is not None, "run before"
        assert program is not None, "run before"
        ends = [step for step in steps if step.ends_step]
        self._begin(training, variant, program, steps, ends, accumulation)

    def _begin(
        self,
        training: Training,
        variant: StepVariant,
        program: Program,
        steps: list[QueuedStep],
        ends: list[QueuedStep],
        accumulation: AccumulatedBatches | None,
    ) -> None:
        self._users.are_current = False
        keeps_all = any(step.outputs.wanted() for step in steps[:-1])
        order = training.order([step.numbers for step in ends], keeps_all, accumulation)
        self._under_way = _InFlight(variant, program, steps, ends, training, order)

    def finish(self, training: Training) -> list[QueuedStep]:
        """Wait for the order; return the steps that it did not run.

        Raises: CsrunError if it ran none, because the data are exhausted
        """
        under_way, done = self._finish(training)
        if not done:
            raise CsrunError(f"the data ended at step {training.step}, but the loop continues")
        under_way.variant.batches.next = under_way.steps[0].batch + done
        return under_way.steps[done:]

    def _finish(self, training: Training) -> tuple[_InFlight, int]:
        """Return the order in progress, and how many batches were run."""
        under_way = self._under_way
        assert under_way is not None, "begun"
        try:
            done = training.finish_order(under_way.order).done
        finally:
            self._under_way = None
        self._replay.step = training.step
        return under_way, done

    def forget(self) -> None:
        """Drop the order in progress, because the system is released."""
        self._running = self._program = self._under_way = None

    def log_finished(self, first: int, count: int) -> None:
        """Store losses and outputs of training steps before a signal may end the run.

        first: the first step.
        count: number of batches.
        """
        assert self._under_way is not None, "they were taken"
        its = self._under_way
        taken = its.steps[:count]
        ended = its.ends[: sum(step.ends_step for step in taken)] if its.steps else its.ends
        if ended and its.program.plan.clip_norm is not None:
            keep_norms(its.program, ended, its.training.norms(first, len(ended)))
        if taken:
            losses = its.program.losses(count)
            self._replay.keep_losses([step.outputs for step in taken], losses)
            scales = scales_of(its.training.scales, taken)
            keep_results(its.variant, its.program, taken, losses, scales)


class Evaluations:
    """Orders of batches for evaluation."""

    def __init__(self) -> None:
        self._taken = 0

    def run(self, variant: StepVariant, program: Program, steps: list[QueuedStep]) -> None:
        """Run steps of a variant.

        Raises: CsrunError if the data are exhausted
        """
        orders = variant.orders = variant.orders or OrderSplitter(program, None)
        while steps:
            done = orders.run_next(StepOrder(self._taken, len(steps))).done
            if not done:
                raise CsrunError(
                    f"the data ended at batch {steps[0].batch}, but the loop continues"
                )
            keep_results(variant, program, steps[:done], program.losses(done))
            steps, self._taken = steps[done:], self._taken + done


def scales_of(scales: Sequence[float], batches: Sequence[QueuedStep]) -> list[float]:
    """Return the scale of each batch of an order. scales: of its steps, including an incomplete
    one.
    """
    if not scales:
        return []
    ended = accumulate((batch.ends_step for batch in batches[:-1]), initial=0)
    return [scales[min(number, len(scales) - 1)] for number in ended]


def _is_ready(variant: StepVariant, step: QueuedStep, batch: int) -> bool:
    """True if a step uses that batch and this variant, which returns everything that may be read of
    it.
    """
    is_next = step.variant is variant and step.batch == batch and step.ends_step and not step.place
    is_next = is_next and step.inputs is None
    return is_next and step.outputs.has_only_requested(variant.outputs)
