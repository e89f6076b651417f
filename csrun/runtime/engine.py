"""The step loop of a wafer, the same in a process of its own and inside the CPU run."""

from math import isfinite
from time import perf_counter

from csrun.executable import Plan, Step, WaferProgram
from csrun.executable.bind import Array, Batch, Bytes
from csrun.executable.bind import wafer_views as views_of
from csrun.runtime.messages import StepsDone
from csrun.runtime.results import ResultSlots
from csrun.runtime.source import BatchSource
from csrun.runtime.weights import Weights


class Engine:
    """Runs steps: takes a batch, runs every group forward and backward, keeps the results."""

    def __init__(
        self,
        plan: Plan,
        program: WaferProgram,
        arena: Bytes,
        store: Bytes,
        source: BatchSource,
        weights: Weights,
        results: ResultSlots,
    ) -> None:
        views = views_of(plan, arena, store)
        self._forward = list(enumerate(program.forward))
        self._backward = list(enumerate(program.backward))[::-1]
        self._source = source
        self._weights = weights
        self._results = results
        self._loss: Array | None = views[plan.loss_buffer] if plan.loss_buffer else None
        self._outputs = [views[o.buffer] for o in plan.outputs]
        self._step = Step()

    def run(self, first: int, count: int) -> StepsDone:
        """Run up to `count` steps, the first of which is global step `first`.

        Stops early at the end of the data, and before the update of a step whose loss is not
        finite. On return every update is committed.
        """
        step, samples, waited = self._step, 0, 0.0
        bad_loss: float | None = None
        finished = False
        for done in range(count):
            asked = perf_counter()
            taken = self._source.take()
            waited += perf_counter() - asked
            if taken is None:
                finished = True
                break
            batch, step.rows = taken
            step.index = first + done
            loss_sum = self._compute(batch, step)
            if not isfinite(loss_sum):
                bad_loss = loss_sum
                break
            self._results.record(done, loss_sum, step.rows, self._outputs)
            self._source.release()
            samples += step.rows
        else:
            done = count
        self._weights.settle()
        return StepsDone(done, samples, waited, finished, bad_loss)

    def _compute(self, batch: Batch, step: Step) -> float:
        """One step; returns the loss sum, and does not touch the weights if it is no number."""
        for group, forward in self._forward:
            self._weights.acquire(group)
            forward(batch, step)
        loss_sum = float(self._loss[0]) if self._loss is not None else 0.0
        if isfinite(loss_sum):
            for group, backward in self._backward:
                self._weights.reacquire(group)
                backward(batch, step)
                self._weights.deliver(group, step)
        return loss_sum
