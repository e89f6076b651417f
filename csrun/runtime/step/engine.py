"""Steps of a loaded program, the same in a wafer process and in the CPU run.

A step is the plan's visits in order, over the full batch or its parts, or over several batches. It
does not change the weights if its loss is not finite.
"""

from math import nan
from time import perf_counter, perf_counter_ns

import numpy as np

from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.executable import Plan, StepState
from csrun.executable.arrays import Batch
from csrun.executable.bind import share_of
from csrun.runtime.step.compute import Compute, MicroBatches, compute_of
from csrun.runtime.step.gradient_sums import places
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.replicated import Replicas
from csrun.runtime.step.results import ResultSlots
from csrun.runtime.step.source import BatchSource, GlobalBatch
from csrun.runtime.step.swarmx import SINGLE_SYSTEM, LossCheck
from csrun.runtime.step.timed import TimedWeights
from csrun.runtime.step.trace import SpanKind
from csrun.runtime.step.weights import Weights
from csrun.runtime.wire.messages import StepOrder, StepsDone


def make_compute(
    program: PlacedProgram, weights: Weights, loss_check: LossCheck = SINGLE_SYSTEM
) -> Compute:
    """Return the computation that the plan requires; verdict: on the loss, over all systems."""
    if program.plan.replicas > 1:
        return Replicas(program, weights)
    return compute_of(program, weights, loss_check)


class Engine:
    """Runs steps: takes a batch, computes it, keeps the results.

    Outputs of a training are kept only for the last step of an order, unless the order requests
    all.
    """

    def __init__(
        self,
        plan: Plan,
        compute: Compute,
        source: BatchSource,
        weights: TimedWeights,
        results: ResultSlots,
        system: int = 0,
        loss_check: LossCheck = SINGLE_SYSTEM,
    ) -> None:
        self._first_sample, self._loss_check = system * share_of(plan), loss_check
        self._recorder = weights.recorder
        self._trains = plan.run_mode is RunMode.TRAIN
        self._plan = plan
        self._compute = compute
        self._source = source
        self._weights = weights
        self._results = results
        self._step = StepState()

    @np.errstate(all="ignore")  # the step's loss shows non-finite values
    def run(self, order: StepOrder) -> StepsDone:
        """Run the steps of an order.

        It stops early at the end of the data, and before the update of a step whose loss is not
        finite. On return every update is complete.
        """
        started = perf_counter()
        keeps_all = order.keeps_all or not self._trains
        step, samples = self._step, 0
        bad_loss: float | None = None
        uncounted: int | None = None
        finished = False
        if order.accumulation is not None and not order.accumulation.ends:
            self._deliver(order.first)
        for done, (step.index, step.batch, step.is_last) in enumerate(places(order)):
            taken = self._take(step.index)
            if taken is None:
                finished = True
                break
            step.rows, step.counts = taken.made.rows, taken.made.counts
            step.first_sample = self._first_sample
            if self._plan.loss_scaling is not None:
                step.loss_scale = self._weights.loss_scale(step.index)
            loss_sum = self._run(taken.batch)
            if not self._loss_check.is_applied(loss_sum):
                bad_loss = loss_sum
                uncounted = step.counts.index(0) if 0 in step.counts else None
                self._source.release()
                break
            last = done == order.count - 1
            # Before the release: outputs may be views of the batch.
            self._results.record(done, loss_sum, self._counted(), step.rows)
            if last or keeps_all:
                self._results.record_outputs(done, self._compute.outputs)
            self._source.release()
            samples += step.rows
        else:
            done = order.count
        if finished and done and self._trains:  # the last step's are still in place
            self._results.record_outputs(done - 1, self._compute.outputs)
        self._weights.settle()
        seconds = perf_counter() - started
        used = self._source.used()
        waits = self._weights.read()
        return StepsDone(done, samples, seconds, used, finished, bad_loss, uncounted, *waits)

    def _deliver(self, index: int) -> None:
        """End a step whose batches are computed."""
        assert isinstance(self._compute, MicroBatches), "only micro-batches receive such orders"
        self._step.index = index
        self._compute.deliver(self._step)

    def _take(self, index: int) -> GlobalBatch | None:
        """Take the batch of step number `index`."""
        recorder = self._recorder
        if not recorder.at(index):
            return self._source.take()
        began = perf_counter_ns()
        taken = self._source.take()
        recorder.add(SpanKind.INPUT, index, began)
        self._weights.begin()
        return taken

    def _counted(self) -> int:
        """Return the count that the loss's sum is divided by."""
        step, which = self._step, self._plan.loss_count
        return step.rows if which is None else step.counts[which]

    def _run(self, batch: Batch) -> float:
        """Return the sum of the loss; in a training NaN if no label counts: its mean is undefined.

        In an evaluation such a batch adds 0 to the loss.

        Raises: CsrunError for an incomplete batch if its padding would count
        """
        plan, step = self._plan, self._step
        if plan.counts_padding is not None and step.rows < plan.batch_size:
            raise CsrunError(
                f"step {step.index + 1}: the batch has {step.rows} of {plan.batch_size} samples "
                f"and {plan.counts_padding} would count its padding: use .batch(..., "
                "drop_remainder=True)"
            )
        # Before the computation: gradients of an undefined mean must not be delivered.
        if self._trains and 0 in self._step.counts:
            return nan
        loss_sum = self._compute.run(batch, self._step)
        return loss_sum if self._counted() else 0.0
